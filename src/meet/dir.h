/* SPDX-License-Identifier: Apache-2.0
 *
 * dir.h - a shared folder as a meeting place. Rank 0 of a group writes one small file that says where it is, under an
 * exclusive lock that it holds as long as it lives there; members read it. Files are written beside and renamed.
 */
#ifndef ISTHMUS_MEET_DIR_H
#define ISTHMUS_MEET_DIR_H

#include "meet/status.h"

/* Publishes bytes for name. *lock_fd: keep it open as long as the record holds. CONFLICT: somebody else holds it, with
 * what it says of itself (host, pid) in the detail. */
ist_err ist__dir_publish(const char *dir, const char *name, const char *who, const void *addr, uint64_t bytes, int *lock_fd, struct ist_error *err);
/* Takes the record back and closes the lock. */
void ist__dir_withdraw(const char *dir, const char *name, int lock_fd);
/* *bytes: room in, length out; 0: nothing there (yet). */
ist_err ist__dir_find(const char *dir, const char *name, void *room, uint64_t *bytes, struct ist_error *err);
/* What a member tells of itself; best effort. remove takes it back. */
void ist__dir_tell(const char *dir, const struct ist__ctx *ctx, const struct ist__status *status);
void ist__dir_untell(const char *dir, const struct ist__status *status);
/* Calls each with every status told in the folder and how long ago in ms. */
ist_err ist__dir_list(const char *dir, void (*each)(void *arg, const struct ist__status *status, uint64_t ms), void *arg, struct ist_error *err);

#endif
