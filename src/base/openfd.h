/* SPDX-License-Identifier: Apache-2.0
 *
 * openfd.h - opening a file. Where it lies on another machine a signal to the caller's thread may end that before it did
 * anything.
 */
#ifndef ISTHMUS_BASE_OPENFD_H
#define ISTHMUS_BASE_OPENFD_H

/* As openat; mode counts where a file is made. -1 and errno. */
int ist__open(int folder, const char *path, int flags, unsigned mode);

#endif
