/* SPDX-License-Identifier: Apache-2.0
 *
 * update.pml - a model of one update (update.c, run.c, regroup.c, loss.c) for three members, run by `make model`: START,
 * READY, MOVE with a check before the second bucket, PROVE, VOTE, then commit or take back. With CONTINUE the survivors of a
 * loss meet in a smaller group and go on where the one stands that got least far; who fails by itself and can be missed is left
 * behind in the same way, when all have heard it from him. Member 0 is a source, 1 a sink, with
 * TWO_SOURCES a source too, 2 a sink. A member may die, fail by itself (a disk is full, a digest does not hold), abort the
 * group, or be cut off from the other two in silence (CUTS), at any step; FAULTS of these together.
 *
 * The vote is taken as what src/group/decide.pml shows: nobody says yes before all have voted yes; who has all votes holds;
 * when the group breaks, those that can reach each other say yes if one of them holds, else nobody of them will hold any
 * more, and they say no; who has lost somebody for his silence, or can reach nobody, is in doubt. An exchange ends well for
 * a member when all have entered it, and says the same to all for whom it does; or it breaks.
 *
 * Checked:
 *  1. nobody reports success where another that lives and is in his group reports that the old version stays (DIRTY, which
 *     is what members in doubt say, contradicts nobody);
 *  2. success means that every sink in the group has had every bucket, from a giver that lived to give it, and no failure;
 *  3. only who was cut off, or has lost somebody for his silence, or can reach nobody, ends in doubt;
 *  4. nobody waits for ever.
 * Who was left behind by a group that went on is not in it, and may have another outcome: the report names it as lost.
 *
 * PLANT plants an error, to show that the check finds it: 1 who went on although the silent may have committed forgets that
 * when it fails later, 2 the survivors go on where the one stands that got farthest, 3 a sink does not tell that it failed,
 * 4 after a vote that broke the old version is taken for certain, 5 nobody looks whether what a lost source had to give
 * has another giver.
 */
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef PLANT
#define PLANT 0
#endif
#ifdef TWO_SOURCES
#define IS_SOURCE(i) ((i) < 2)
#else
#define IS_SOURCE(i) ((i) == 0)
#endif
#define IS_SINK(i) ((i) > 0)
#define BUCKETS 2

/* step[] */
#define START 1
#define READY 2
#define MOVE 3
#define PROVE 4
#define VOTE 5

/* at[]: what the member does */
#define WORKS 0
#define WAITS 1      /* in an exchange */
#define VOTES 2
#define REGROUPS 3   /* tries to meet the others that are left */

/* out[] */
#define YES 1
#define NO 2
#define DOUBT 3

#define BIT(j) (1 << (j))
#define NOBODY 3

byte step[3] = START, at[3], out[3], next[3];
byte group[3] = 7, gen[3]; /* my group: its members, how many came before it */
byte lost[3], silent[3];   /* whom I know to be gone; for their silence */
byte entered[3];           /* exchanges of this group */
bool said[6];              /* in this and in the last exchange: I have failed */
byte moving[3];            /* the bucket that I take part in now */
bool checked[3];           /* the check before the second bucket is behind me */
bool stands[3];            /* the exchange is the one in which all say where they stand */
byte gave[3];              /* buckets that I have given to this group */
bool failed[3], dead[3], aborted[3] /* by gen */;
bool voted[3], no[3];      /* in this group */
bool holds[3], frozen[3];
bool perhaps[3];           /* somebody silent may have committed */
bool torn[3];              /* took a bucket that no one gave */
byte cut = NOBODY;
byte faults;
bool patient;

#define RUNS(i) (!dead[i] && out[i] == 0)
#define IN(i, j) (group[i] & BIT(j))
#define APART(i, j) ((i) != (j) && (cut == (i) || cut == (j)))
#define SAME(i, j) (gen[i] == gen[j] && group[i] == group[j])
#define BROKEN(i) ((lost[i] & group[i]) || aborted[gen[i]])

inline finish(f_i, f_out) {
	out[f_i] = f_out;
	at[f_i] = WORKS;
	if
	:: f_out == YES ->
		assert(next[f_i] == BUCKETS && !failed[f_i] && !torn[f_i]);
		assert(!IN(f_i, 0) || dead[0] || out[0] != NO);
		assert(!IN(f_i, 1) || dead[1] || (out[1] != NO && next[1] == BUCKETS && !torn[1]));
		assert(!IN(f_i, 2) || dead[2] || (out[2] != NO && next[2] == BUCKETS && !torn[2]))
	:: f_out == NO ->
		assert(dead[0] || out[0] != YES || !IN(0, f_i));
		assert(dead[1] || out[1] != YES || !IN(1, f_i));
		assert(dead[2] || out[2] != YES || !IN(2, f_i))
	:: f_out == DOUBT ->
		assert(cut != NOBODY || (lost[f_i] | BIT(f_i) | ~group[f_i]) & 7 == 7)
	fi
}

/* The update fails here. */
inline give_up(g_i) {
	if
	:: perhaps[g_i] && PLANT != 1 -> finish(g_i, DOUBT)
	:: else -> finish(g_i, NO)
	fi
}

inline enter(e_i) {
	entered[e_i]++;
	said[2 * e_i + (entered[e_i] & 1)] = failed[e_i] && !(PLANT == 3 && IS_SINK(e_i));
	at[e_i] = WAITS
}

#define HAS_ENTERED(i, j) (!IN(i, j) || (SAME(i, j) && !APART(i, j) && entered[j] >= entered[i]))
#define ALL_ENTERED(i) (HAS_ENTERED(i, 0) && HAS_ENTERED(i, 1) && HAS_ENTERED(i, 2))
#define SAID(i, j) (IN(i, j) && said[2 * (j) + (entered[i] & 1)])
#define ANY_SAID(i) (SAID(i, 0) || SAID(i, 1) || SAID(i, 2))
/* Those that have said so go alone if the others can do without them (leave.c). */
#define STAYS(i, j) (IN(i, j) && !SAID(i, j))
#define LEAVERS(i) ((SAID(i, 0) -> 1 : 0) | (SAID(i, 1) -> 2 : 0) | (SAID(i, 2) -> 4 : 0))
#define CAN_MISS(i) (((STAYS(i, 0) && IS_SOURCE(0)) || (STAYS(i, 1) && IS_SOURCE(1))) && (STAYS(i, 1) || STAYS(i, 2)))

/* The group broke under member i. */
inline on_broken(b_i) {
#ifdef CONTINUE
	at[b_i] = REGROUPS; stands[b_i] = false
#else
	give_up(b_i)
#endif
}

/* Where all that are in the group go on: least far. Which source gives is asked anew. */
#define LEAST(what, i, j) (IN(i, j) && what[j] < least -> what[j] : least)
#define MOST(what, i, j) (IN(i, j) && what[j] > least -> what[j] : least)
#define LIVES(i, j) (IN(i, j))
#define HAS_SOURCE(i) ((IN(i, 0) && IS_SOURCE(0)) || (IN(i, 1) && IS_SOURCE(1)) || PLANT == 5)
#define HAS_SINK(i) (IN(i, 1) || IN(i, 2))
#define GIVER(i) (IN(i, 0) -> 0 : 1)

/* In its new group member i has heard where all stand. What they said is kept, since they go on at different times. */
byte stood_step[3], stood_next[3];

inline go_on(o_i) {
	least = 9;
	least = LEAST(stood_step, o_i, 0); least = LEAST(stood_step, o_i, 1); least = LEAST(stood_step, o_i, 2);
	if
	:: PLANT == 2 -> least = 0; least = MOST(stood_step, o_i, 0); least = MOST(stood_step, o_i, 1); least = MOST(stood_step, o_i, 2)
	:: else
	fi;
	step[o_i] = least;
	least = 9;
	least = LEAST(stood_next, o_i, 0); least = LEAST(stood_next, o_i, 1); least = LEAST(stood_next, o_i, 2);
	if
	:: step[o_i] > MOVE && least < BUCKETS && PLANT != 2 -> step[o_i] = MOVE
	:: else
	fi;
	gave[o_i] = (step[o_i] == MOVE -> least : 0); /* all take part from there on; buckets that it has are not taken twice */
	moving[o_i] = gave[o_i];
	checked[o_i] = (moving[o_i] > 0);
	stands[o_i] = false;
	at[o_i] = WORKS
}
inline after_exchange(x_i) {
	if
#ifdef CONTINUE
	:: ANY_SAID(x_i) && CAN_MISS(x_i) && SAID(x_i, x_i) -> give_up(x_i)
	:: ANY_SAID(x_i) && CAN_MISS(x_i) && !SAID(x_i, x_i) -> lost[x_i] = lost[x_i] | LEAVERS(x_i); on_broken(x_i)
	:: ANY_SAID(x_i) && !CAN_MISS(x_i) -> give_up(x_i)
#else
	:: ANY_SAID(x_i) -> give_up(x_i)
#endif
	:: else ->
		if
		:: stands[x_i] && !(HAS_SOURCE(x_i) && HAS_SINK(x_i)) -> give_up(x_i)
		:: stands[x_i] && HAS_SOURCE(x_i) && HAS_SINK(x_i) -> go_on(x_i)
		:: !stands[x_i] && step[x_i] == MOVE -> checked[x_i] = true; at[x_i] = WORKS
		:: !stands[x_i] && step[x_i] != MOVE -> step[x_i]++; at[x_i] = WORKS
		fi
	fi
}

#define VOTED(i, j) (!IN(i, j) || (SAME(i, j) && !APART(i, j) && voted[j]))
#define ALL_VOTED(i) (VOTED(i, 0) && VOTED(i, 1) && VOTED(i, 2))
#define VOTED_NO(i, j) (IN(i, j) && no[j])
#define ANY_NO(i) (VOTED_NO(i, 0) || VOTED_NO(i, 1) || VOTED_NO(i, 2))
#define NEAR(i, j) (IN(i, j) && !dead[j] && !APART(i, j) && SAME(i, j))
#define HOLDS(i, j) (NEAR(i, j) && holds[j])
#define ANY_HOLDS(i) (HOLDS(i, 0) || HOLDS(i, 1) || HOLDS(i, 2))
/* all the others are gone, by death or silence, and none answers */
#define CAN_REACH(i, j) ((i) != (j) && IN(i, j) && !(lost[i] & BIT(j)))
#define CAN_REACH_ANY(i) (CAN_REACH(i, 0) || CAN_REACH(i, 1) || CAN_REACH(i, 2))

/* Everybody has answered, or is known to be gone. */
#define HEARD_OF(i, j) (!IN(i, j) || (lost[i] & BIT(j)) || (!dead[j] && !APART(i, j)))
#define RESOLVED(i) (HEARD_OF(i, 0) && HEARD_OF(i, 1) && HEARD_OF(i, 2))

/* Nobody near holds: none of them will. */
inline freeze_all(z_i) {
	if :: NEAR(z_i, 0) -> frozen[0] = true :: else fi;
	if :: NEAR(z_i, 1) -> frozen[1] = true :: else fi;
	if :: NEAR(z_i, 2) -> frozen[2] = true :: else fi;
	frozen[z_i] = true
}

inline vote_broke(v_i) {
	if
	:: ANY_HOLDS(v_i) -> holds[v_i] = true; finish(v_i, YES)
	:: else ->
		freeze_all(v_i);
		if
		:: PLANT == 4 -> on_broken(v_i)
		:: PLANT != 4 && !CAN_REACH_ANY(v_i) -> finish(v_i, DOUBT)
		:: PLANT != 4 && CAN_REACH_ANY(v_i) && (silent[v_i] & group[v_i]) ->
#ifdef CONTINUE
			perhaps[v_i] = true; on_broken(v_i)
#else
			finish(v_i, DOUBT)
#endif
		:: PLANT != 4 && CAN_REACH_ANY(v_i) && !(silent[v_i] & group[v_i]) -> on_broken(v_i)
		fi
	fi
}

/* Those that are left and know of the same losses meet, when all have come. */
#define LEFT(i) (group[i] & ~lost[i])
#define COMES(i, j) (!(LEFT(i) & BIT(j)) || (RUNS(j) && at[j] == REGROUPS && gen[j] == gen[i] && LEFT(j) == LEFT(i) && !APART(i, j)))
#define ALL_COME(i) (COMES(i, 0) && COMES(i, 1) && COMES(i, 2))

inline move_in(n_j, n_left) {
	if
	:: n_left & BIT(n_j) ->
		group[n_j] = n_left;
		gen[n_j]++;
		entered[n_j] = 0; said[2 * n_j] = false; said[2 * n_j + 1] = false;
		voted[n_j] = false; no[n_j] = false; holds[n_j] = false; frozen[n_j] = false;
		gave[n_j] = 0;
		stood_step[n_j] = step[n_j]; stood_next[n_j] = (IS_SINK(n_j) -> next[n_j] : BUCKETS);
		stands[n_j] = true;
		enter(n_j)
	:: else
	fi
}

/* On the way, member i finds that j is gone; or, when nothing moves any more, that j does not come. */
#define NOTICES(i, j) \
	:: atomic { RUNS(i) && (i) != j && IN(i, j) && !(lost[i] & BIT(j)) && dead[j] -> lost[i] = lost[i] | BIT(j) } \
	:: atomic { RUNS(i) && (i) != j && IN(i, j) && !(lost[i] & BIT(j)) && APART(i, j) -> \
		lost[i] = lost[i] | BIT(j); silent[i] = silent[i] | BIT(j) } \
	:: atomic { RUNS(i) && (i) != j && IN(i, j) && !(lost[i] & BIT(j)) && !dead[j] && !APART(i, j) && timeout && \
		(out[j] != 0 || (at[i] == REGROUPS && at[j] != REGROUPS) || !SAME(i, j)) -> lost[i] = lost[i] | BIT(j) }

proctype member(byte i) {
	byte least, left;

	do
	:: atomic { !RUNS(i) -> break }
	/* steps that are one exchange */
	:: atomic { RUNS(i) && at[i] == WORKS && step[i] != MOVE && step[i] != VOTE ->
		enter(i) }
	:: atomic { RUNS(i) && at[i] == WAITS && ALL_ENTERED(i) -> after_exchange(i) }
	:: atomic { RUNS(i) && at[i] == WAITS && BROKEN(i) -> on_broken(i) }

	/* MOVE: a failed member goes on taking part until the check */
	:: atomic { RUNS(i) && at[i] == WORKS && step[i] == MOVE && moving[i] == 1 && !checked[i] -> enter(i) }
	:: atomic { RUNS(i) && at[i] == WORKS && step[i] == MOVE && moving[i] < BUCKETS && (moving[i] != 1 || checked[i]) && GIVER(i) == i ->
		gave[i] = moving[i] + 1; moving[i]++;
		if :: IS_SINK(i) && next[i] < moving[i] -> next[i] = moving[i] :: else fi }
	:: atomic { RUNS(i) && at[i] == WORKS && step[i] == MOVE && moving[i] < BUCKETS && (moving[i] != 1 || checked[i]) && GIVER(i) != i &&
		((SAME(i, GIVER(i)) && gave[GIVER(i)] > moving[i] && cut != i && cut != GIVER(i)) || !IS_SOURCE(GIVER(i))) ->
		torn[i] = torn[i] || (!IS_SOURCE(GIVER(i)) || next[i] < moving[i]);
		moving[i]++;
		if :: next[i] < moving[i] -> next[i] = moving[i] :: else fi }
	:: atomic { RUNS(i) && at[i] == WORKS && step[i] == MOVE && moving[i] == BUCKETS ->
		if :: !IS_SINK(i) -> next[i] = BUCKETS :: else fi;
		step[i] = PROVE }
	:: atomic { RUNS(i) && at[i] == WORKS && step[i] == MOVE && BROKEN(i) -> on_broken(i) }

	/* VOTE */
	:: atomic { RUNS(i) && at[i] == WORKS && step[i] == VOTE -> voted[i] = true; no[i] = failed[i] && !(PLANT == 3 && IS_SINK(i)); at[i] = VOTES }
	:: atomic { RUNS(i) && at[i] == VOTES && ALL_VOTED(i) && ANY_NO(i) -> give_up(i) }
	:: atomic { RUNS(i) && at[i] == VOTES && ALL_VOTED(i) && !ANY_NO(i) && !frozen[i] -> holds[i] = true; finish(i, YES) }
	:: atomic { RUNS(i) && at[i] == VOTES && BROKEN(i) && RESOLVED(i) -> vote_broke(i) }

	/* a smaller group */
	:: atomic { RUNS(i) && at[i] == REGROUPS && LEFT(i) == group[i] -> give_up(i) } /* nobody to leave behind */
	:: atomic { RUNS(i) && at[i] == REGROUPS && LEFT(i) != group[i] && ALL_COME(i) ->
		left = LEFT(i);
		move_in(0, left); move_in(1, left); move_in(2, left); left = 0 }
	NOTICES(i, 0)
	NOTICES(i, 1)
	NOTICES(i, 2)
	od
}

#define CAN (faults < FAULTS && !patient)
#define HARM(i) \
	:: atomic { CAN && !dead[i] -> faults++; dead[i] = true } \
	:: atomic { CAN && RUNS(i) && !failed[i] && !voted[i] -> faults++; failed[i] = true } \
	CUT(i)
#ifdef CUTS
#define CUT(i) :: atomic { CAN && cut == NOBODY && !dead[i] -> faults++; cut = i }
#else
#define CUT(i)
#endif

proctype trouble() {
end:
	do
	HARM(0) HARM(1) HARM(2)
	:: atomic { CAN && RUNS(0) && !aborted[gen[0]] -> faults++; aborted[gen[0]] = true }
	:: atomic { CAN && RUNS(2) && !aborted[gen[2]] -> faults++; aborted[gen[2]] = true }
	:: atomic { !patient -> patient = true }
	od
}

init {
	atomic { run member(0); run member(1); run member(2); run trouble() }
}
