/* SPDX-License-Identifier: Apache-2.0
 *
 * demo_mpi.c - the member's own world is MPI's. Open MPI is opened at run time, so that this program needs none; its
 * handles are addresses of exported objects.
 */
#include "demo.h"

#include <dlfcn.h>
#include <string.h>

struct mpi {
	void *lib;
	int (*init)(int *argc, char ***argv);
	int (*barrier)(void *comm);
	int (*all_reduce)(const void *src, void *dst, int n, void *type, void *op, void *comm);
	int (*finalize)(void);
	void *world, *type_int, *op_min;
};

/* There is one MPI in a process. */
static struct mpi mpi;

static bool
mpi_open(struct world *w)
{
	if (mpi.init(NULL, NULL) == 0)
		return true;
	snprintf(w->text, sizeof(w->text), "MPI_Init failed");
	return false;
}

static bool
mpi_round(struct world *w, bool stop, bool *all_stop)
{
	int mine = stop, least = 0;

	if (mpi.barrier(mpi.world) || mpi.all_reduce(&mine, &least, 1, mpi.type_int, mpi.op_min, mpi.world)) {
		snprintf(w->text, sizeof(w->text), "MPI_Barrier failed");
		return false;
	}
	*all_stop = least;
	return true;
}

static void
mpi_close(struct world *w)
{
	(void)w;
	mpi.finalize();
}

bool
world_mpi(struct world *w)
{
	const struct {
		const char *name;
		void *slot;
	} symbols[] = { { "MPI_Init", &mpi.init }, { "MPI_Barrier", &mpi.barrier }, { "MPI_Allreduce", &mpi.all_reduce },
		{ "MPI_Finalize", &mpi.finalize }, { "ompi_mpi_comm_world", &mpi.world }, { "ompi_mpi_int", &mpi.type_int },
		{ "ompi_mpi_op_min", &mpi.op_min } };

	*w = (struct world){ .name = "mpi", .open = mpi_open, .round = mpi_round, .close = mpi_close };
	mpi.lib = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);
	if (!mpi.lib)
		mpi.lib = dlopen("libmpi.so", RTLD_NOW | RTLD_GLOBAL);
	if (!mpi.lib) {
		snprintf(w->text, sizeof(w->text), "%s", dlerror());
		return false;
	}
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *address = dlsym(mpi.lib, symbols[i].name);

		if (!address) {
			snprintf(w->text, sizeof(w->text), "libmpi has no %s (Open MPI is needed)", symbols[i].name);
			return false;
		}
		memcpy(symbols[i].slot, &address, sizeof(address));
	}
	return true;
}
