/* SPDX-License-Identifier: Apache-2.0
 *
 * board.h - what the members of a group on one host tell each other in shared memory beside the mesh: which byte-string
 * operation or barrier each has entered, the prints of the line's operations, and short byte strings that all get. A desk
 * and two sheets a member, which it alone writes; the others read. Only who has gone to sleep is told by a message (BELL);
 * then it looks again.
 *
 * Desks, then sheets, lie in the host's life segment. A group that spans hosts, or has a member without the feature, has no
 * board (NULL) and uses messages alone. The only length read here is a sheet's, which is checked; there are no offsets.
 */
#ifndef ISTHMUS_GROUP_BOARD_H
#define ISTHMUS_GROUP_BOARD_H

#include "coll/check.h"
#include "net/msg.h"

#include <stdatomic.h>

struct ist__group;

enum {
	IST__BOARD_OPS = 16,     /* of a desk that are remembered */
	IST__BOARD_PRINTS = 512, /* twice what a line has under way */
	IST__BOARD_PAUSES = 10,  /* looks before the CPU is given away, where there is one for each */
	IST__PRINT_WORDS = IST__PRINT_BYTES / 8 + 1
};

struct ist__desk {
	_Alignas(64) _Atomic uint64_t op;              /* the newest byte-string operation that was entered */
	_Atomic uint64_t broken;                       /* not 0: the group has ended with an error, and from that operation on it passes none */
	_Atomic uint64_t ops[IST__BOARD_OPS];          /* [op % IST__BOARD_OPS]: op << 24 | type << 8 | root & 255 */
	_Alignas(64) _Atomic uint64_t op_sleeper;      /* not 0: asleep until all have entered that one; a waker sets it to 0 */
	_Alignas(64) _Atomic uint64_t prints_made;
	_Alignas(64) _Atomic uint64_t prints_sleeper;  /* not 0: asleep until all have made so many prints */
	_Alignas(64) _Atomic uint64_t prints[IST__BOARD_PRINTS][IST__PRINT_WORDS]; /* number of the operation, then the print */
};

/* What the board of a group of n takes, at a cache line; 0: there is none. */
uint64_t ist__board_bytes(uint32_t n, uint64_t features);
/* It is at this place, zeros in the beginning. */
void ist__board_share(struct ist__group *g, void *at);

/* Lock held: this member has entered operation seq. Wakes those that wait for nothing more. */
void ist__board_enter(struct ist__group *g, uint64_t seq, uint16_t type, uint32_t root);
/* A member that has not entered seq, or does not pass it (the mesh tells why), or IST_NO_RANK. */
uint32_t ist__board_absent(const struct ist__group *g, uint64_t seq);
/* Lock held: the group has ended with an error. Whoever comes late must not take this member for one that waits. */
void ist__board_break(struct ist__group *g);
/* The one in operation seq asks: does somebody know something else as this operation, or one before it? out gets number,
 * type, root and rank as if a message of it had come. */
bool ist__board_clash(struct ist__group *g, uint64_t seq, struct ist__msg *out);
/* Looks for a short while, giving the CPU away; true: all have entered. */
bool ist__board_linger(const struct ist__group *g, uint64_t seq);
/* From now on, until false is said, BELL comes when all have entered seq: look once more after this. */
void ist__board_sleep(struct ist__group *g, uint64_t seq, bool on);

/* Makes the print of operation seq known. One thread at a time, which also compares. */
void ist__board_print(struct ist__group *g, uint64_t seq, const uint8_t print[IST__PRINT_BYTES]);
/* Compares what is there. *agreed: all operations that were made known and have lower numbers are the same everywhere.
 * asleep: about to sleep; BELL comes when there is more. Fails with what differs. */
ist_err ist__board_compare(struct ist__group *g, bool asleep, uint64_t *agreed, struct ist_error *err);

/* ---- sheets.c ---- */
/* All sheets of a group of n. */
uint64_t ist__sheets_bytes(uint32_t n);
/* The longest string that has room on one. */
uint64_t ist__sheet_room(uint32_t n);
/* Writes on the next sheet of ours, before the operation is entered: the string, or, where that is too long (false), just
 * that. */
bool ist__sheet_put(struct ist__group *g, uint64_t seq, const void *addr, uint64_t bytes);
/* Once all have entered the operation: what a member wrote. False: nothing for this operation. *at NULL: too long. */
bool ist__sheet_get(const struct ist__group *g, uint64_t seq, uint32_t rank, const void **at, uint64_t *bytes);

#endif
