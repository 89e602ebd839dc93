/* SPDX-License-Identifier: Apache-2.0
 *
 * mpi.c - a peer: the collectives of an MPI. Started by its mpirun, which says over what bytes move (bench/peer).
 */
#include "peer.h"

#include <mpi.h>

#define BARRIERS 500
#define GATHERS 200
#define SPLITS 20

struct self {
	struct peer_args args;
	struct peer_arena arena;
	int rank;
};

static double
slowest(double seconds)
{
	double max;

	MPI_Allreduce(&seconds, &max, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	return max;
}

static void
split_once(void)
{
	MPI_Comm comm;

	MPI_Comm_split(MPI_COMM_WORLD, 0, 0, &comm);
	MPI_Comm_free(&comm);
}

static int
inner_of(const struct peer_item *item)
{
	if (!strcmp(item->what, "barrier"))
		return BARRIERS;
	if (!strcmp(item->what, "allgather"))
		return GATHERS;
	if (!strcmp(item->what, "split"))
		return SPLITS;
	return strcmp(item->what, "broadcast") ? 0 : 1;
}

static void
once(const struct peer_item *item, uint8_t *p, uint8_t *all)
{
	if (!strcmp(item->what, "barrier"))
		MPI_Barrier(MPI_COMM_WORLD);
	else if (!strcmp(item->what, "allgather"))
		MPI_Allgather(p, (int)item->bytes, MPI_BYTE, all, (int)item->bytes, MPI_BYTE, MPI_COMM_WORLD);
	else if (!strcmp(item->what, "split"))
		split_once();
	else
		MPI_Bcast(p, (int)item->bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
}

static int
measure(struct self *self, const struct peer_item *item, uint8_t *all)
{
	double at[PEER_REPEAT], seconds[PEER_REPEAT];
	int inner = inner_of(item);

	for (int i = -1; i < self->args.repeat; i++) { /* the first is to warm up */
		uint8_t *p = peer_cut(&self->arena, item->bytes);
		double start;

		if (self->rank == 0)
			peer_stamp(p, item->bytes, (uint64_t)i + 1);
		MPI_Barrier(MPI_COMM_WORLD);
		start = peer_now();
		for (int k = 0; k < inner; k++)
			once(item, p, all);
		seconds[i < 0 ? 0 : i] = slowest(peer_now() - start) / inner;
		at[i < 0 ? 0 : i] = start;
		if (!strcmp(item->what, "broadcast") && !peer_stamped(p, item->bytes, (uint64_t)i + 1))
			return 1;
	}
	if (self->rank == 0)
		peer_print(&self->args, item, "", inner, at, seconds, self->args.repeat);
	return 0;
}

int
main(int argc, char **argv)
{
	double start = peer_now(), created, at;
	struct self self;
	int bad = 0;

	MPI_Init(&argc, &argv);
	MPI_Barrier(MPI_COMM_WORLD);
	created = slowest(peer_now() - start);
	at = start;
	MPI_Comm_rank(MPI_COMM_WORLD, &self.rank);
	if (!peer_parse(&self.args, argc, argv) || !peer_arena_new(&self.arena, &self.args))
		MPI_Abort(MPI_COMM_WORLD, 1);
	for (int i = 0; !bad && i < self.args.n_items; i++) {
		struct peer_item *item = &self.args.items[i];
		uint8_t *all = malloc((size_t)self.args.ranks * (item->bytes < 65536 ? item->bytes + 1 : 1));

		if (!strcmp(item->what, "create")) { /* once in the life of a process */
			if (self.rank == 0)
				peer_print(&self.args, item, "MPI_Init", 1, &at, &created, 1);
		} else if (inner_of(item)) {
			bad = !all || measure(&self, item, all);
		} else if (self.rank == 0) {
			peer_print_why(&self.args, item, "MPI has nothing like it");
		}
		free(all);
	}
	if (bad)
		fprintf(stderr, "%s: rank %d: wrong bytes arrived\n", self.args.name, self.rank);
	if (bad)
		MPI_Abort(MPI_COMM_WORLD, 1);
	MPI_Finalize();
	return 0;
}
