/* SPDX-License-Identifier: Apache-2.0
 *
 * memfd.h - a memory file that others can be given, that can be sealed, and that nobody can execute.
 */
#ifndef ISTHMUS_BASE_MEMFD_H
#define ISTHMUS_BASE_MEMFD_H

#include <stdbool.h>

/* -1 and errno. */
int ist__memfd(const char *name);
/* Does that errno say that there are no memory files here: an old kernel, a filter of system calls? */
bool ist__memfd_is_forbidden(int sys);

#endif
