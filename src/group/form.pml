/* SPDX-License-Identifier: Apache-2.0
 *
 * form.pml - a model of how a group forms (form.c, star.c, finish.c) for three members and a rival, run by `make model`:
 * the star, the roll-call, the steps, the vote, and what the mesh makes of the connections afterwards. A member may die,
 * be cancelled, fail by itself, lose a connection loudly or in silence (CUTS), or have no memory for what it says, at any
 * step; FAULTS of these together. Members come whenever they like, also too late. The rival (process 3, RIVAL) claims rank 1
 * as well: while its holder lives it is refused, when that died before the roll-call was closed it takes its place.
 *
 * Kept small, each time towards more behaviour: time is not counted. A deadline (DEADLINES) ends a wait when nothing else
 * moves, and as a fault at any moment, each member's by itself, since they begin at different times. Connections are queues
 * in order; what a dead process had sent comes through, or not. What a channel's opening and comparing does is one step
 * that may fail. With three members each is linked to each, so the mesh needs no floods.
 *
 * Rank 0 may be stopped between its two last words, for ever (STOPS). Who has the group sends heartbeats (PING), and one of those
 * says as much as rank 0's word.
 *
 * Checked:
 *  1. nobody has the group before all three have voted that they are ready;
 *  2. nobody has it where rank 0 has said no, or where somebody failed before his vote. (After his vote a member may still
 *     die, be cancelled, run out of time, or lose rank 0: then it has an error, and the others a group that has lost it.)
 *  3. when nothing moves any more, who has the group and has lost nobody is right: all have it;
 *  4. nobody waits for ever; without DEADLINES: nobody waits for a deadline where all came, and nothing falls silent, also
 *     where rank 0 is stopped after one member has heard its last word.
 *
 * PLANT plants an error, to show that the check finds it: 1 rank 0 says no to all when it has told one yes and can't tell
 * another, 2 a member takes the step before for the vote, 3 rank 0 does not tell the others of a member's failure, 4 who
 * sees a link end after its vote forgets it, 5 who waits for rank 0's word takes no heartbeat for it (needs STOPS).
 */
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef PLANT
#define PLANT 0
#endif

/* messages; what a step carries is its number */
#define JOIN 1
#define ROLL 2
#define OPENED 3     /* PHASE 1: from a member its own, from rank 0 all of them */
#define READY 4      /* PHASE 3, the vote; from rank 0: all have voted */
#define BAD 5        /* a PHASE that says: I failed */
#define FAIL 6
#define HOSTLINK 7   /* the life segment, from the first member of the host */
#define FDS(r) (8 + (r)) /* descriptors of rank r's offer */
#define ASK 12
#define ANSWER 13
#define PING 14      /* the mesh's: its sender has the group */

/* out[] */
#define YES 1
#define TOLD 2       /* rank 0 has said no */
#define OWN 3        /* by itself: failed, cancelled, out of time */
#define ALONE 4      /* rank 0 is gone */

#define AT(i, j) ((i) * 4 + (j))
#define Q(i, j) q[AT(i, j)]
chan q[16] = [8] of { byte };
bool has[16];        /* i has a connection to j */
bool down[16];       /* it has ended: i will see that when it has read what came before */
bool mute[16];       /* it fell silent */
bool lost[16];       /* i has the group, and knows that j is gone */
byte out[4];
bool dead[4], voted[4], told_bad[4];
bool claimed[4];     /* by rank 0's reading */
byte first = 1;      /* who is rank 1: 1, or 3 in its place */
bool expecting, rolled;
byte faults;
bool patient;        /* nothing goes wrong any more */

#define CAN (faults < FAULTS && !patient)
#define RUNS(i) (!dead[i] && out[i] == 0)
#define RANK(i) (i == 3 -> 1 : i)

inline send(s_i, s_j, s_m) {
	if
	:: has[AT(s_i, s_j)] && !down[AT(s_i, s_j)] && !mute[AT(s_i, s_j)] -> Q(s_i, s_j) ! s_m
	:: else
	fi
}

inline clear(c_i, c_j) {
	do
	:: Q(c_i, c_j) ? _
	:: len(Q(c_i, c_j)) == 0 -> break
	od
}

inline hang_up(h_i, h_j) {
	if
	:: has[AT(h_i, h_j)] ->
		has[AT(h_i, h_j)] = false;
		clear(h_j, h_i);
		if
		:: mute[AT(h_i, h_j)] -> skip
		:: else -> down[AT(h_j, h_i)] = has[AT(h_j, h_i)]
		fi
	:: else
	fi;
	down[AT(h_i, h_j)] = false
}

inline hang_up_all(a_i) {
	hang_up(a_i, 0); hang_up(a_i, 1); hang_up(a_i, 2); hang_up(a_i, 3)
}

inline connect(c_i, c_j) {
	has[AT(c_i, c_j)] = true; has[AT(c_j, c_i)] = true;
	mute[AT(c_i, c_j)] = false; mute[AT(c_j, c_i)] = false;
	down[AT(c_i, c_j)] = false; down[AT(c_j, c_i)] = false
}

#define IN_GROUP(i) (i == 0 || i == 2 || i == first)
#define SAYS_NO(i) (out[i] == TOLD || (i == 0 && out[i] != YES && out[i] != 0) || (out[i] == OWN && !voted[i]))

inline end_with(e_i, e_out) {
	out[e_i] = e_out;
	if
	:: e_out == YES ->
		assert(voted[0] && voted[2] && voted[first]);
		assert(!SAYS_NO(0) && !SAYS_NO(2) && !SAYS_NO(first))
	:: else ->
		assert(!IN_GROUP(e_i) || !SAYS_NO(e_i) || (out[0] != YES && out[2] != YES && out[first] != YES));
		hang_up_all(e_i)
	fi
}

/* The connection of i to j has ended, and i has read all that came before. */
#define ENDED(i, j) (has[AT(i, j)] && down[AT(i, j)] && len(Q(j, i)) == 0)
#define HEARS(i, j) (has[AT(i, j)] && len(Q(j, i)) > 0)
#ifdef DEADLINES
#define LATE(i) (timeout && RUNS(i))
#else
#define LATE(i) false
#endif

/* ---- a member ---- */

byte hearsay[4];      /* a link ended: rank 0 knows better why; by itself only after a while */
byte got[4];          /* descriptors that came, a bit for each rank */
bool fail_next[4];    /* its next step fails here */
byte heard[4];        /* the last step that rank 0 has ended */
bool life[4];

/* One event, whatever the member waits for. */
#define EVENTS(i) \
	:: atomic { RUNS(i) && HEARS(i, 0) -> Q(0, i) ? m; \
		if \
		:: m == FAIL -> end_with(i, TOLD) \
		:: m == ASK -> send(i, 0, ANSWER) \
		:: m == HOSTLINK -> life[i] = true \
		:: m >= FDS(0) && m <= FDS(2) -> got[i] = got[i] | (1 << (m - FDS(0))) \
		:: m == ROLL || m == OPENED || m == READY -> heard[i] = m \
		:: else -> assert(false) \
		fi; m = 0 } \
	:: atomic { RUNS(i) && has[AT(i, peer)] && HEARS(i, peer) -> Q(peer, i) ? m; \
		assert(m == PING && voted[i]); \
		if :: PLANT != 5 -> heard[i] = READY :: else fi; m = 0 } \
	:: atomic { RUNS(i) && ENDED(i, 0) -> end_with(i, ALONE) } \
	:: atomic { RUNS(i) && has[AT(i, peer)] && ENDED(i, peer) -> \
		hang_up(i, peer); \
		if :: voted[i] -> lost[AT(i, peer)] = (PLANT != 4) :: else -> hearsay[i] = 1 fi } \
	:: atomic { RUNS(i) && hearsay[i] && timeout_of_hearsay(i) -> end_with(i, OWN) } \
	:: atomic { LATE(i) -> end_with(i, OWN) } \
	:: atomic { !RUNS(i) -> goto over }

#define timeout_of_hearsay(i) (!HEARS(i, 0))

proctype member(byte i) {
	byte m = 0, peer = 0;
	bool pinged = false;

	/* finds rank 0 and claims its rank there; comes again when that connection ends */
	do
	:: atomic { RUNS(i) && !has[AT(i, 0)] && !has[AT(0, i)] && expecting && !dead[0] -> connect(i, 0); send(i, 0, JOIN) }
	:: atomic { RUNS(i) && HEARS(i, 0) -> Q(0, i) ? m;
		if
		:: m == ROLL -> heard[i] = ROLL
		:: m == FAIL -> end_with(i, TOLD)
		:: m == ASK -> send(i, 0, ANSWER)
		:: else -> assert(false)
		fi; m = 0 }
	:: atomic { RUNS(i) && heard[i] != ROLL && ENDED(i, 0) -> hang_up(i, 0) }
	:: atomic { RUNS(i) && heard[i] == ROLL -> break }
	:: atomic { RUNS(i) && !expecting && (!claimed[i] || !has[AT(i, 0)]) && timeout -> end_with(i, OWN) } /* too late: always a deadline */
	:: atomic { LATE(i) -> end_with(i, OWN) }
	:: atomic { !RUNS(i) -> goto over }
	od;

	/* links: the higher rank dials */
	atomic {
		if :: i == 2 -> peer = first :: else -> peer = 2 fi;
		if
		:: i == 2 && RUNS(i) && !dead[peer] && out[peer] == 0 -> connect(i, peer)
		:: i == 2 && RUNS(i) && (dead[peer] || out[peer] != 0) -> fail_next[i] = true
		:: else
		fi
	}
	do
	:: atomic { RUNS(i) && (has[AT(i, peer)] || fail_next[i]) -> break }
	EVENTS(i)
	od;
	atomic {
		if
		:: RUNS(i) && fail_next[i] -> told_bad[i] = true; send(i, 0, BAD)
		:: RUNS(i) && !fail_next[i] -> send(i, 0, OPENED)
		:: else
		fi
	}
	do
	:: atomic { RUNS(i) && !told_bad[i] && heard[i] == OPENED -> break }
	EVENTS(i)
	od;

	/* the host's life segment; descriptors go by way of rank 0 */
	do
	:: atomic { RUNS(i) && (life[i] || fail_next[i]) -> break }
	EVENTS(i)
	od;
	atomic { if :: RUNS(i) && !fail_next[i] -> send(i, 0, FDS(RANK(i))) :: else fi }
	do
	:: atomic { RUNS(i) && (fail_next[i] || (got[i] | (1 << RANK(i))) == 7) -> break }
	EVENTS(i)
	od;
	atomic {
		if
		:: RUNS(i) && fail_next[i] -> told_bad[i] = true; send(i, 0, BAD)
		:: RUNS(i) && !fail_next[i] -> voted[i] = true; send(i, 0, READY)
		:: else
		fi
	}
	do
	:: atomic { RUNS(i) && !told_bad[i] && (heard[i] == READY || (PLANT == 2 && heard[i] == OPENED)) ->
		end_with(i, YES);
		lost[AT(i, peer)] = lost[AT(i, peer)] || (!has[AT(i, peer)] && PLANT != 4);
		break }
	EVENTS(i)
	od;
over:
end:
	/* the mesh: with the group it sees connections end and fall silent */
	do
	:: atomic { !dead[i] && out[i] == YES && HEARS(i, 0) -> Q(0, i) ? _ }
	:: atomic { !dead[i] && out[i] == YES && HEARS(i, peer) -> Q(peer, i) ? _ }
	:: atomic { !dead[i] && out[i] == YES && !pinged -> pinged = true; send(i, peer, PING) }
	:: atomic { !dead[i] && out[i] == YES && ENDED(i, 0) -> hang_up(i, 0); lost[AT(i, 0)] = true }
	:: atomic { !dead[i] && out[i] == YES && ENDED(i, peer) -> hang_up(i, peer); lost[AT(i, peer)] = true }
	:: atomic { !dead[i] && out[i] == YES && has[AT(i, 0)] && mute[AT(i, 0)] -> hang_up(i, 0); lost[AT(i, 0)] = true }
	:: atomic { !dead[i] && out[i] == YES && has[AT(i, peer)] && mute[AT(i, peer)] -> hang_up(i, peer); lost[AT(i, peer)] = true }
	od
}

/* ---- rank 0 ---- */

bool contest;         /* 3 waits for an answer of 1 */
byte in[4];           /* the last step that a member has sent */
bool scarce;          /* rank 0 has no memory for what it says last to rank 2 */

inline fail_all() {
	send(0, 2, FAIL);
	if :: claimed[first] -> send(0, first, FAIL) :: else fi;
	end_with(0, OWN)
}

#define FROM(j) \
	:: atomic { RUNS(0) && claimed[j] && HEARS(0, j) -> Q(j, 0) ? m; \
		if \
		:: m == BAD -> if :: PLANT == 3 -> skip :: else -> fail_all() fi \
		:: m == FDS(RANK(j)) -> got[0] = got[0] | (1 << RANK(j)); \
			if :: j == 2 -> send(0, first, FDS(2)) :: else -> send(0, 2, FDS(1)) fi \
		:: m == OPENED || m == READY -> in[j] = m \
		:: m == ANSWER -> skip \
		:: else -> assert(false) \
		fi; m = 0 } \
	:: atomic { RUNS(0) && claimed[j] && ENDED(0, j) -> fail_all() }

#define WAIT \
	FROM(1) FROM(2) FROM(3) \
	:: atomic { RUNS(0) && fail_next[0] -> fail_all() } \
	:: atomic { LATE(0) -> fail_all() } \
	:: atomic { !RUNS(0) -> goto over }

/* The roll-call: a claim whose connection ends is nobody's; a second claimant waits for the first one's answer. */
#define CALL(j) \
	:: atomic { RUNS(0) && HEARS(0, j) -> Q(j, 0) ? m; \
		if \
		:: m == JOIN && j != 2 && claimed[4 - j] -> contest = true; send(0, 4 - j, ASK) \
		:: m == JOIN && (j == 2 || !claimed[4 - j]) -> claimed[j] = true; if :: j != 2 -> first = j :: else fi \
		:: m == ANSWER && contest -> contest = false; send(0, 4 - j, FAIL); hang_up(0, 4 - j) \
		:: m == ANSWER && !contest -> skip \
		:: else -> assert(false) \
		fi; m = 0 } \
	:: atomic { RUNS(0) && ENDED(0, j) -> \
		if \
		:: claimed[j] -> claimed[j] = false; hang_up(0, j); \
			if :: contest && j != 2 -> contest = false; claimed[4 - j] = true; first = 4 - j :: else fi \
		:: !claimed[j] -> contest = false; hang_up(0, j) \
		fi }

proctype root() {
	byte m = 0;

	expecting = true;
	do
	CALL(1)
	CALL(2)
	CALL(3)
	:: atomic { RUNS(0) && contest && !HEARS(0, 1) && !HEARS(0, 3) && timeout -> /* no answer in 0.7 s */
		contest = false;
		if :: claimed[1] -> send(0, 3, FAIL); hang_up(0, 3) :: else -> send(0, 1, FAIL); hang_up(0, 1) fi }
	:: atomic { RUNS(0) && !contest && claimed[2] && (claimed[1] || claimed[3]) ->
		rolled = true; expecting = false;
		send(0, first, ROLL); send(0, 2, ROLL);
		break }
	:: atomic { RUNS(0) && !(claimed[2] && (claimed[1] || claimed[3])) && timeout -> expecting = false; fail_all() } /* somebody does not come */
	:: atomic { RUNS(0) && fail_next[0] -> expecting = false; fail_all() }
	:: atomic { LATE(0) -> expecting = false; fail_all() }
	:: atomic { !RUNS(0) -> expecting = false; goto over }
	od;
	do
	:: atomic { RUNS(0) && in[2] == OPENED && in[first] == OPENED -> break }
	WAIT
	od;
	atomic { if :: RUNS(0) -> send(0, first, OPENED); send(0, 2, OPENED); send(0, first, HOSTLINK); send(0, 2, HOSTLINK);
			send(0, first, FDS(0)); send(0, 2, FDS(0)) :: else fi }
	do
	:: atomic { RUNS(0) && (got[0] | 1) == 7 && !fail_next[0] -> voted[0] = true; break }
	WAIT
	od;
	do
	:: atomic { RUNS(0) && in[2] == READY && in[first] == READY && !fail_next[0] -> break }
	WAIT
	od;
	/* the word that counts: who can't be told loses rank 0 */
	atomic { if :: RUNS(0) -> send(0, first, READY) :: else fi }
#ifdef STOPS
	if
	:: atomic { RUNS(0) && CAN -> faults++; goto endstopped }
	:: true
	fi;
#endif
	atomic {
		if
		:: RUNS(0) && scarce && PLANT == 1 -> fail_all()
		:: RUNS(0) && scarce && PLANT != 1 -> hang_up(0, 2); lost[AT(0, 2)] = true; end_with(0, YES)
		:: RUNS(0) && !scarce -> send(0, 2, READY); end_with(0, YES)
		:: else
		fi
	}
over:
end:
	do
	:: atomic { !dead[0] && out[0] == YES && ENDED(0, 1) -> hang_up(0, 1); lost[AT(0, 1)] = true }
	:: atomic { !dead[0] && out[0] == YES && ENDED(0, 2) -> hang_up(0, 2); lost[AT(0, 2)] = true }
	:: atomic { !dead[0] && out[0] == YES && ENDED(0, 3) -> hang_up(0, 3); lost[AT(0, 3)] = true }
	:: atomic { !dead[0] && out[0] == YES && has[AT(0, first)] && mute[AT(0, first)] -> hang_up(0, first); lost[AT(0, first)] = true }
	:: atomic { !dead[0] && out[0] == YES && has[AT(0, 2)] && mute[AT(0, 2)] -> hang_up(0, 2); lost[AT(0, 2)] = true }
	od;
#ifdef STOPS
endstopped:
	false
#endif
}

/* ---- what goes wrong ---- */

inline drop_some(d_i, d_j) { if :: clear(d_i, d_j) :: true fi }

inline crash(c_i) {
	dead[c_i] = true;
	drop_some(c_i, 0); drop_some(c_i, 1); drop_some(c_i, 2); drop_some(c_i, 3);
	hang_up_all(c_i);
	if :: c_i == 0 -> expecting = false :: else fi
}

inline cut(c_i, c_j, c_loud) {
	clear(c_i, c_j); clear(c_j, c_i);
	if
	:: c_loud -> down[AT(c_i, c_j)] = true; down[AT(c_j, c_i)] = true
	:: else -> mute[AT(c_i, c_j)] = true; mute[AT(c_j, c_i)] = true
	fi
}

#ifdef DEADLINES
#define WHEN true
#else
#define WHEN rolled
#endif
#ifdef CUTS
#define CUT(i, j) :: atomic { CAN && WHEN && has[AT(i, j)] && has[AT(j, i)] && !down[AT(i, j)] && !down[AT(j, i)] && !mute[AT(i, j)] -> \
	faults++; cut(i, j, false) }
#else
#define CUT(i, j)
#endif
#define RESET(i, j) :: atomic { CAN && WHEN && has[AT(i, j)] && has[AT(j, i)] && !down[AT(i, j)] && !down[AT(j, i)] && !mute[AT(i, j)] -> \
	faults++; cut(i, j, true) }
#ifdef RIVAL /* it comes instead */
#define GONE_EARLY(i) || (i == 1 && !rolled)
#else
#define GONE_EARLY(i)
#endif
#define HARM(i) \
	:: atomic { CAN && (WHEN GONE_EARLY(i)) && !dead[i] -> faults++; crash(i) } \
	:: atomic { CAN && WHEN && RUNS(i) && !fail_next[i] && !voted[i] -> faults++; fail_next[i] = true }
#define CANCEL(i) :: atomic { CAN && WHEN && RUNS(i) -> faults++; end_with(i, OWN) }

proctype trouble() {
end:
	do
	HARM(0) HARM(1) HARM(2)
	CANCEL(1) CANCEL(2)
	:: atomic { CAN && WHEN && RUNS(0) && !scarce -> faults++; scarce = true }
	CUT(0, 1) CUT(0, 2) CUT(1, 2)
	RESET(0, 1) RESET(0, 2) RESET(1, 2)
	:: atomic { !patient -> patient = true }
	od
}

#define HAS_IT(i) (!dead[i] && out[i] == YES)
#define ALL_OUT (!RUNS(0) && !RUNS(1) && !RUNS(2))
#define WHOLE(i, j, k) (HAS_IT(i) && !lost[AT(i, j)] && !lost[AT(i, k)])
proctype judge() {
end:
	do
	:: atomic { timeout && ALL_OUT && WHOLE(0, first, 2) -> assert(HAS_IT(first) && HAS_IT(2)) ; break }
	:: atomic { timeout && ALL_OUT && WHOLE(2, 0, first) -> assert(HAS_IT(first) && HAS_IT(0)) ; break }
	:: atomic { timeout && ALL_OUT && WHOLE(first, 0, 2) -> assert(HAS_IT(0) && HAS_IT(2)) ; break }
	od
}

init {
	atomic {
		run root(); run member(1); run member(2);
#ifdef RIVAL
		run member(3);
#else
		out[3] = OWN;
#endif
		run trouble(); run judge()
	}
}
