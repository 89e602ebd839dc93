/* SPDX-License-Identifier: Apache-2.0
 *
 * decide.pml - a model of decide.c for three members, run by `make model`: votes gathered in two rounds, the barrier, what
 * the mesh floods (LOST, ABORT, LEFT), and the questions of those that missed the outcome. Any member may crash, any link
 * may die with what is on it, anybody may abort, at any step; FAULTS of these together.
 *
 * Kept small, each time towards more behaviour, never less: what is on a link is a set of frames, taken in any order (most
 * are urgent and overtake others; LEFT is not, and comes last); a frame that would change nothing at its receiver is not
 * sent; a vote that comes and what the caller's thread does with it are one step, since a later coming does the same as a
 * later waking; the barrier may end well as soon as all three hold. Each handler of the loop's thread and each stretch
 * under the group's lock is one step.
 *
 * Checked: no member says yes where another that lives says no; nobody says yes without three yes votes; nobody waits for
 * ever. In doubt is always allowed, and counts as neither. (LEAVING, callers that give the group back at once, is for looking
 * around only: there it matters that HELD comes before LOST on a link, and sets have no order.)
 *
 * What it shows: with crashes, aborts, silent cuts (CUTS), connections that somebody resets between two members that live
 * (RESETS), and members that stop for longer than the no-progress limit and go on (STOPS) this holds. It rests on one
 * thing: who says no has made sure that a member whose connection ended is dead (decide_alive.c); the model knows, and may
 * end in doubt instead at any time.
 *
 * PLANT plants an error, to show that the check finds it: 1 holds although it has said that it holds nothing, 2 says that
 * it holds nothing although it holds, 3 does not pass an abort on, 4 takes the silent for dead (needs CUTS or STOPS), 5
 * takes the end of a connection for a death (needs RESETS): 0 has all votes, its link to 1 is reset before 1 has, 2 has not
 * got them yet either. 1 and 2 ask each other, take 0 for dead, and say no; 0 holds, and says yes.
 */
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef PLANT
#define PLANT 0
#endif

/* frames, as bits; r is who tells of itself */
#define V0 1    /* votes, by round */
#define V1 2
#define ABORT 4
#define LEFT 8
#define LOST(r) (16 << (r))
#define HELD 128
#define ASK(r) (256 << (r))
#define SILENT(r) (2048 << (r)) /* LOST, for its silence */
#define LOST_AS(r, how) (((how) == IS_LOST) * LOST(r) + ((how) == IS_SILENT) * SILENT(r))

#define GATHERING 0
#define HOLDING 1
#define FAILED 2

#define YES 1
#define NO 2
#define DOUBT 3

/* gone[] */
#define IS_LOST 1
#define IS_LEFT 2
#define IS_SILENT 3 /* IS_LOST + 2 */

#define AT(i, j) ((i) * 3 + (j))
#define NEXT(i) (((i) + 1) % 3)
#define PREV(i) (((i) + 2) % 3)
#define ALL_SAID ((said[0] || dead[0]) && (said[1] || dead[1]) && (said[2] || dead[2]))

short wire[9];               /* AT(from, to) */
bool up[9] = true;          /* AT(i, j): the link, as i may use it */
bool mute[9];               /* it fell away without a word: silence, where else the kernel says that it ended */
bool ended[9];              /* i has seen that its link to j ended */
byte gone[9];               /* for i, j is here (0), or one of those above */
bool answered[9];           /* i has heard that j holds nothing */
byte got[3];                /* which votes have come */
byte at[3];                 /* where the caller's thread is */
bool no;                    /* somebody has voted no */
bool broken[3], held[3], frozen[3], dead[3], closed[3];
bool whole[3];              /* it holds by itself, and has entered the barrier */
byte said[3];               /* the outcome, for the caller */
byte faults;

inline put(p_i, p_j, p_m) {
	if
	:: up[AT(p_i, p_j)] && !dead[p_j] && !closed[p_j] -> wire[AT(p_i, p_j)] = wire[AT(p_i, p_j)] | (p_m)
	:: else
	fi
}

#define PUT_UNLESS(i, j, m, known) if :: !(known) -> put(i, j, m) :: else fi

inline flood_abort(f_i) {
	PUT_UNLESS(f_i, NEXT(f_i), ABORT, broken[NEXT(f_i)] || PLANT == 3);
	PUT_UNLESS(f_i, PREV(f_i), ABORT, broken[PREV(f_i)] || PLANT == 3)
}

inline flood_held(f_i) {
	PUT_UNLESS(f_i, NEXT(f_i), HELD, held[NEXT(f_i)]);
	PUT_UNLESS(f_i, PREV(f_i), HELD, held[PREV(f_i)])
}

inline flood_lost(f_i, f_r, f_how) {
	PUT_UNLESS(f_i, NEXT(f_i), LOST_AS(f_r, f_how), gone[AT(NEXT(f_i), f_r)] || (f_r == NEXT(f_i) && broken[NEXT(f_i)]));
	PUT_UNLESS(f_i, PREV(f_i), LOST_AS(f_r, f_how), gone[AT(PREV(f_i), f_r)] || (f_r == PREV(f_i) && broken[PREV(f_i)]))
}

#define KNOWS(j, r) ((r == j || answered[AT(j, r)]) && (held[j] || frozen[j]))

inline flood_ask(f_i, f_r) {
	PUT_UNLESS(f_i, NEXT(f_i), ASK(f_r), KNOWS(NEXT(f_i), f_r));
	PUT_UNLESS(f_i, PREV(f_i), ASK(f_r), KNOWS(PREV(f_i), f_r))
}

inline flood_left(f_i, f_r) {
	PUT_UNLESS(f_i, NEXT(f_i), LEFT, gone[AT(NEXT(f_i), f_r)]);
	PUT_UNLESS(f_i, PREV(f_i), LEFT, gone[AT(PREV(f_i), f_r)])
}

inline freeze(z_i) {
	if
	:: !frozen[z_i] -> frozen[z_i] = true; flood_ask(z_i, z_i)
	:: else
	fi
}

inline say(s_i, s_what) {
	said[s_i] = s_what;
	assert(s_what != YES || !no);
	assert(s_what != YES || ((said[NEXT(s_i)] != NO || dead[NEXT(s_i)]) && (said[PREV(s_i)] != NO || dead[PREV(s_i)])));
	assert(s_what != NO || ((said[NEXT(s_i)] != YES || dead[NEXT(s_i)]) && (said[PREV(s_i)] != YES || dead[PREV(s_i)])))
}

/* ---- the loop's thread ---- */

inline on_lost(h_i, h_r, h_how) {
	if
	:: h_r == h_i -> broken[h_i] = true /* EVICTED */
	:: h_r != h_i && gone[AT(h_i, h_r)] == 0 ->
		gone[AT(h_i, h_r)] = h_how;
		broken[h_i] = true;
		flood_lost(h_i, h_r, h_how)
	:: else
	fi
}

inline on_held(h_i) {
	if
	:: !held[h_i] -> held[h_i] = true; flood_held(h_i)
	:: else
	fi
}

inline on_ask(h_i, h_r) {
	if
	:: h_r != h_i && !answered[AT(h_i, h_r)] -> answered[AT(h_i, h_r)] = true; flood_ask(h_i, h_r)
	:: else
	fi;
	if
	:: held[h_i] && PLANT != 2 -> flood_held(h_i)
	:: else -> freeze(h_i)
	fi
}

#define ALIVE(i) (!dead[i] && !closed[i] && !ALL_SAID)
#define TAKE(m) atomic { ALIVE(i) && (wire[AT(from, i)] & (m)) -> wire[AT(from, i)] = wire[AT(from, i)] & ~(m)

/* ---- the caller's thread: vote_on and resolve; and what comes on one link ---- */

/* The votes of round 0 are on their way to the member before; with that of the next one here, both go to the next. */
inline vote_came(v_i, v_kind) {
	got[v_i] = got[v_i] | v_kind;
	if
	:: v_kind == V0 && at[v_i] == GATHERING ->
		if
		:: broken[v_i] || (gone[AT(v_i, NEXT(v_i))] == 0 && !up[AT(v_i, NEXT(v_i))]) -> at[v_i] = FAILED
		:: else -> put(v_i, NEXT(v_i), V1)
		fi
	:: else
	fi;
	if
	:: got[v_i] == (V0 | V1) && at[v_i] == GATHERING ->
		if
		:: no -> say(v_i, NO)
		:: !no && (!frozen[v_i] || PLANT == 1) -> held[v_i] = true; whole[v_i] = true; at[v_i] = HOLDING
		:: else -> at[v_i] = FAILED
		fi
	:: else
	fi
}

proctype link(byte i; byte from) {
end:
	do
	:: TAKE(V0); vote_came(i, V0) }
	:: TAKE(V1); vote_came(i, V1) }
	:: TAKE(ABORT); if :: !broken[i] -> broken[i] = true; flood_abort(i) :: else fi }
	:: TAKE(HELD); on_held(i) }
	:: TAKE(LOST(0)); on_lost(i, 0, IS_LOST) }
	:: TAKE(SILENT(0)); on_lost(i, 0, IS_SILENT) }
	:: TAKE(LOST(1)); on_lost(i, 1, IS_LOST) }
	:: TAKE(SILENT(1)); on_lost(i, 1, IS_SILENT) }
	:: TAKE(LOST(2)); on_lost(i, 2, IS_LOST) }
	:: TAKE(SILENT(2)); on_lost(i, 2, IS_SILENT) }
	:: TAKE(ASK(0)); on_ask(i, 0) }
	:: TAKE(ASK(1)); on_ask(i, 1) }
	:: TAKE(ASK(2)); on_ask(i, 2) }
	:: atomic { ALIVE(i) && wire[AT(from, i)] == LEFT ->
		wire[AT(from, i)] = 0;
		if
		:: gone[AT(i, from)] == 0 -> gone[AT(i, from)] = IS_LEFT /* passed on only where there is no link */
		:: else
		fi }
	:: atomic { ALIVE(i) && !up[AT(i, from)] && !ended[AT(i, from)] && wire[AT(from, i)] == 0 ->
		ended[AT(i, from)] = true;
		if
		:: gone[AT(i, from)] == 0 -> on_lost(i, from, IS_LOST + 2 * mute[AT(i, from)])
		:: else
		fi }
	od
}

/* unanswered(): PASSED are those who were given up before they had answered. Who was lost and lives may answer still. */
#define ANSWERED(i, r) (answered[AT(i, r)] || gone[AT(i, r)] == IS_LEFT)
#define DIED(i, r) (gone[AT(i, r)] == IS_LOST && (dead[r] || PLANT == 5))
#define PASSED(i, r) ((DIED(i, r) || gone[AT(i, r)] == IS_SILENT) && !answered[AT(i, r)])
#define LIVES(i, r) (gone[AT(i, r)] == IS_LOST && !DIED(i, r) && !answered[AT(i, r)])
#define UNANSWERED(i) ((!ANSWERED(i, NEXT(i)) && !PASSED(i, NEXT(i))) || (!ANSWERED(i, PREV(i)) && !PASSED(i, PREV(i))))
#define ALONE(i) (PASSED(i, NEXT(i)) && PASSED(i, PREV(i)))
#define MAY_HOLD(i, r) (gone[AT(i, r)] == IS_SILENT && !answered[AT(i, r)])
#define SILENCE(i) ((MAY_HOLD(i, NEXT(i)) || MAY_HOLD(i, PREV(i))) && PLANT != 4)

#define RUNS(i) (!dead[i] && said[i] == 0)

proctype member(byte i) {
end:
	do
	:: atomic { RUNS(i) && at[i] == GATHERING && broken[i] -> at[i] = FAILED }
	:: atomic { RUNS(i) && at[i] == GATHERING && !broken[i] && ((gone[AT(i, NEXT(i))] == IS_LEFT && ended[AT(i, NEXT(i))] && !(got[i] & V0)) ||
			(gone[AT(i, PREV(i))] == IS_LEFT && ended[AT(i, PREV(i))] && !(got[i] & V1))) ->
		at[i] = FAILED; broken[i] = true; flood_abort(i) }
	/* the barrier: ends well, or not */
	:: atomic { RUNS(i) && at[i] == HOLDING && whole[NEXT(i)] && whole[PREV(i)] -> say(i, YES) }
	:: atomic { RUNS(i) && at[i] == HOLDING && (broken[i] || gone[AT(i, NEXT(i))] == IS_LEFT || gone[AT(i, PREV(i))] == IS_LEFT) ->
		flood_held(i);
		say(i, YES) }
	/* resolve */
	:: atomic { RUNS(i) && at[i] == FAILED && !held[i] && !frozen[i] -> freeze(i) }
	:: atomic { RUNS(i) && at[i] == FAILED && held[i] -> say(i, YES) }
	:: atomic { RUNS(i) && at[i] == FAILED && !held[i] && frozen[i] && !UNANSWERED(i) ->
		if :: ALONE(i) || SILENCE(i) -> say(i, DOUBT) :: else -> say(i, NO) fi }
	:: atomic { RUNS(i) && at[i] == FAILED && !held[i] && frozen[i] && UNANSWERED(i) && timeout ->
		say(i, DOUBT) }
	:: atomic { RUNS(i) && at[i] == FAILED && !held[i] && frozen[i] && (LIVES(i, NEXT(i)) || LIVES(i, PREV(i))) ->
		say(i, DOUBT) } /* it is given less time */
#ifdef LEAVING
	/* the caller gives the group back */
	:: atomic { ALIVE(i) && said[i] != 0 ->
		if :: !broken[i] -> flood_left(i, i) :: else fi;
		closed[i] = true;
		wire[AT(NEXT(i), i)] = 0; wire[AT(PREV(i), i)] = 0;
		up[AT(i, NEXT(i))] = false; up[AT(NEXT(i), i)] = false;
		up[AT(i, PREV(i))] = false; up[AT(PREV(i), i)] = false }
#endif
	od
}

/* ---- what goes wrong ---- */

inline cut(c_i, c_j) {
	up[AT(c_i, c_j)] = false;
	up[AT(c_j, c_i)] = false;
#ifndef RESETS
	mute[AT(c_i, c_j)] = true;
	mute[AT(c_j, c_i)] = true;
#endif
	wire[AT(c_i, c_j)] = 0;
	wire[AT(c_j, c_i)] = 0
}

inline crash(c_i) { /* what it had sent comes through, or not */
	dead[c_i] = true;
	wire[AT(NEXT(c_i), c_i)] = 0; wire[AT(PREV(c_i), c_i)] = 0;
	up[AT(c_i, NEXT(c_i))] = false; up[AT(NEXT(c_i), c_i)] = false;
	up[AT(c_i, PREV(c_i))] = false; up[AT(PREV(c_i), c_i)] = false;
	if :: wire[AT(c_i, NEXT(c_i))] = 0 :: true fi;
	if :: wire[AT(c_i, PREV(c_i))] = 0 :: true fi
}

inline interrupt(c_i) { /* an abort, or a deadline */
	broken[c_i] = true;
	flood_abort(c_i)
}

#define CAN (faults < FAULTS && !ALL_SAID)
/* The members are in a ring, one like the other: whom the first fault hits does not matter. */
#define FAIL(i, may) \
	:: atomic { CAN && (may) && !dead[i] -> faults++; crash(i) } \
	:: atomic { CAN && (may) && ALIVE(i) && !broken[i] -> faults++; interrupt(i) } \
	CUT(i, may) \
	STOP(i, may)
#if defined(CUTS) || defined(RESETS)
#define CUT(i, may) :: atomic { CAN && (may) && up[AT(i, NEXT(i))] -> faults++; cut(i, NEXT(i)) }
#else
#define CUT(i, may)
#endif
#ifdef STOPS /* i stood still for so long that a neighbour gave it up, and goes on; nothing is lost on the way */
#define STOP(i, may) \
	:: atomic { CAN && (may) && ALIVE(NEXT(i)) && !gone[AT(NEXT(i), i)] && !dead[i] -> faults++; on_lost(NEXT(i), i, IS_SILENT) } \
	:: atomic { CAN && (may) && ALIVE(PREV(i)) && !gone[AT(PREV(i), i)] && !dead[i] -> faults++; on_lost(PREV(i), i, IS_SILENT) }
#else
#define STOP(i, may)
#endif

proctype trouble() {
end:
	do
	FAIL(0, true)
	FAIL(1, faults > 0)
	FAIL(2, faults > 0)
	od
}

/* Nothing moves any more: then all must have an outcome. (Who holds nothing and waits for a silent one ends in doubt, by time.) */
#define WAITS(i) (RUNS(i) && at[i] != FAILED)
proctype patience() {
end:
	do
	:: atomic { timeout && (WAITS(0) || WAITS(1) || WAITS(2)) -> assert(false) }
	od
}

init {
	atomic {
		if :: no = false :: no = true fi;
		wire[AT(0, 2)] = V0; wire[AT(1, 0)] = V0; wire[AT(2, 1)] = V0;
		run link(0, 1); run link(0, 2); run link(1, 0); run link(1, 2); run link(2, 0); run link(2, 1);
		run member(0); run member(1); run member(2);
		run trouble();
		run patience()
	}
}
