/* SPDX-License-Identifier: Apache-2.0
 *
 * wire.h - the one list of frame types. Numbers are wire: never reused. What each carries stands beside the code that
 * writes it.
 */
#ifndef ISTHMUS_NET_WIRE_H
#define ISTHMUS_NET_WIRE_H

enum ist__type {
	/* forming a group: members and rank 0 (group/form.c) */
	IST__JOIN = 1, IST__WAIT = 2, IST__ROLL = 3, IST__PHASE = 4, IST__FAIL = 5, IST__COMMIT = 6,
	IST__LINK = 7, IST__HOSTLINK = 8, IST__FDS = 9, IST__ASK = 10, IST__ANSWER = 11,
	/* a formed group's mesh (group/mesh.c) */
	IST__PING = 16, IST__LOST = 17, IST__LEFT = 18, IST__ABORT = 19, IST__CHECK = 20, IST__WHO = 21, IST__HERE = 22,
	IST__HELD = 23, IST__HELD_ASK = 24, IST__BELL = 25, IST__CANT = 26, IST__LANE = 27,
	/* byte strings and barrier (group/objects.c) */
	IST__BARRIER = 32, IST__BROADCAST = 33, IST__GATHER = 34, IST__ALL_GATHER = 35, IST__SEND = 36, IST__VOTE = 37,
	/* a meeting place (meet/store.c) */
	IST__PUBLISH = 48, IST__PUBLISHED = 49, IST__FIND = 50, IST__FOUND = 51, IST__TELL = 52, IST__LIST = 53,
	IST__ROWS = 54, IST__REFUSED = 55, IST__NOTE = 56
};

#define IST__ALL UINT32_MAX /* to every member */

#endif
