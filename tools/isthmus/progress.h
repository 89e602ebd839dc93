/* SPDX-License-Identifier: Apache-2.0
 *
 * progress.h - one line that says how far it is: a bar on a terminal, otherwise a line a second at most. There is one
 * terminal, so there is one bar; it may be fed from any thread.
 */
#ifndef ISTHMUS_TOOL_PROGRESS_H
#define ISTHMUS_TOOL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

/* Whether stderr takes a line without waiting for its reader, who gets a second when he first falls behind. A member must not
 * stand still, and be taken for frozen, because of a terminal that is stopped. */
bool progress_room(void);

void progress_start(const char *what, bool quiet);
void progress_bytes(void *unused, uint64_t bytes, uint64_t total); /* fits ist_sync_args.progress */
void progress_note(const char *text);                             /* instead of bytes, say who is waited for */
void progress_hide(void);                                         /* before another line is written */
void progress_end(void);                                          /* takes the bar away and gives the cursor back */

#endif
