/* SPDX-License-Identifier: Apache-2.0
 *
 * shared.pml - a model of the last step of a forming whose members all share a segment (vote.c), for three
 * members, run by `make model`: each writes that it is ready; the outcome is one word that is set once, yes by who sees that
 * all are ready, no by who gives up. Who has looked for long enough sends rank 0 its word, notes that it sleeps, and waits for
 * a message; who settles the outcome wakes rank 0, and that wakes the others. A member may die or give up at any step; FAULTS
 * of these together. Once it is ready it may also be stopped for ever (STOPS): for that who sleeps looks from time to time;
 * without STOPS it never does, which shows that messages suffice where nobody is stopped. Every access to the shared words is
 * a step of its own.
 *
 * Checked: nobody has the group where another of those who live has not, whoever died when; it is never both; nobody has it
 * before all were ready; and nobody who lives waits for ever.
 *
 * PLANT plants an error, to show that the check finds it: 1 who goes to sleep does not look again, 2 rank 0 wakes nobody,
 * 3 who gives up does not look whether it may, 4 who sleeps looks at the outcome alone, not whether all are ready (needs STOPS).
 */
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef PLANT
#define PLANT 0
#endif

#define YES 1
#define NO 2

byte word;             /* the outcome */
bool ready[3], asleep[3];
bool dead[3], stopped[3];
byte out[3];
bool told[3];          /* a word for i has come: from rank 0, or, for rank 0, from the others */
bool bad[3];           /* rank 0 has said no to i */
byte faults;

#define ALL_READY (ready[0] && ready[1] && ready[2])
/* a connection of the star ends with either of its members; who is out by an error closes its own */
#define STAR_ENDED(i) (dead[i] || dead[0] || out[0] == NO || out[i] == NO)
#define ANY_ENDED (STAR_ENDED(1) || STAR_ENDED(2))

inline wake() {
	if
	:: i == 0 && PLANT != 2 ->
		if :: asleep[1] -> told[1] = true :: else fi;
		if :: asleep[2] -> told[2] = true :: else fi
	:: i != 0 ->
		if :: asleep[0] -> told[0] = true :: else fi
	:: else
	fi
}

/* what ends a wait early: the connection, rank 0's no, or being cancelled, out of time */
#define SEES_END (i == 0 && ANY_ENDED || i != 0 && (STAR_ENDED(i) || bad[i]))

#define GONE_(i) (dead[i] || stopped[i])
#define GONE GONE_(i)
#define LIVE if :: GONE -> goto gone :: else fi
#ifdef STOPS
#define LOOKS (word != 0 || (ALL_READY && PLANT != 4))
#else
#define LOOKS false
#endif

proctype member(byte i) {
	bool saw[3], closed;

	atomic { LIVE; ready[i] = true };
	atomic { LIVE; saw[0] = ready[0] };
	atomic { LIVE; saw[1] = ready[1] };
	atomic { LIVE; saw[2] = ready[2] };
	atomic {
		LIVE;
		if
		:: saw[0] && saw[1] && saw[2] && word == 0 -> word = YES; closed = true
		:: else
		fi
	};
look:
	if
	:: atomic { GONE -> goto gone }
	:: atomic { !GONE && word != 0 -> goto over }
	:: atomic { !GONE && word == 0 && SEES_END -> goto give_up }
	:: atomic { !GONE && word == 0 -> goto sleep } /* it has looked long enough */
	:: atomic { !GONE && faults < FAULTS -> faults++; goto give_up }
	fi;
sleep:
	atomic { LIVE; asleep[i] = true };
	atomic {
		LIVE;
		if
		:: PLANT != 1 && word != 0 -> goto over
		:: else
		fi
	};
	atomic {
		LIVE;
		if
		:: i != 0 -> told[0] = true /* its word goes to rank 0, as where there is no such memory */
		:: else
		fi
	};
	do
	:: atomic { GONE -> goto gone }
	:: atomic {
		!GONE && told[i] ->
			told[i] = false;
			if
			:: i != 0 -> goto over
			:: i == 0 && word != 0 -> goto over
			:: i == 0 && word == 0 && ALL_READY -> word = YES; goto over
			:: else
			fi
	}
	:: atomic { !GONE && LOOKS -> if :: word == 0 -> word = YES; closed = true :: else fi; goto over }
	:: atomic { !GONE && SEES_END -> goto give_up }
	:: atomic { !GONE && faults < FAULTS -> faults++; goto give_up }
	od;
give_up:
	atomic {
		LIVE;
		if
		:: PLANT == 3 -> out[i] = NO; goto done
		:: PLANT != 3 && word == 0 -> word = NO
		:: else
		fi
	};
over:
	atomic {
		LIVE;
		if
		:: word == YES ->
			assert(ALL_READY);
			if :: closed || i == 0 -> wake() :: else fi
		:: else
		fi
	};
	atomic {
		LIVE;
		if
		:: word == YES -> out[i] = YES
		:: else -> /* the others hear it from rank 0, which sees somebody go */
			if :: i == 0 -> bad[1] = true; bad[2] = true :: else fi;
			out[i] = NO
		fi
	};
done:
	assert(out[0] != YES || (out[1] != NO && out[2] != NO));
	assert(out[1] != YES || (out[0] != NO && out[2] != NO));
	assert(out[2] != YES || (out[0] != NO && out[1] != NO));
gone:
	skip
}

#define STOP(i) :: atomic { faults < FAULTS && ready[i] && !GONE_(i) && out[i] == 0 -> faults++; stopped[i] = true }

proctype trouble() {
end:
	do
	:: atomic { faults < FAULTS && !dead[0] && out[0] == 0 -> faults++; dead[0] = true }
	:: atomic { faults < FAULTS && !dead[1] && out[1] == 0 -> faults++; dead[1] = true }
	:: atomic { faults < FAULTS && !dead[2] && out[2] == 0 -> faults++; dead[2] = true }
#ifdef STOPS
	STOP(0) STOP(1) STOP(2)
#endif
	od
}

init { atomic { run member(0); run member(1); run member(2); run trouble() } }
