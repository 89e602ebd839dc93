/* SPDX-License-Identifier: Apache-2.0 */
#include "launch.h"

#include "value.h"

#include <stdio.h>
#include <string.h>

/* torchrun sets RANK, Slurm its own for the same process: the inner launcher's set stands first. */
static const struct {
	const char *rank, *size;
} sets[] = {
	{ "RANK", "WORLD_SIZE" },
	{ "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE" },
	{ "PMI_RANK", "PMI_SIZE" },
	{ "SLURM_PROCID", "SLURM_NTASKS" },
};
#define N_SETS (sizeof(sets) / sizeof(sets[0]))
#define SLURM (N_SETS - 1)

/* Step numbers from here on are Slurm's names for the batch script and the interactive shell. */
#define SLURM_STEP_RESERVED UINT64_C(0xfffffff0)

static bool
slurm_step(launch_getenv *get)
{
	const char *text = get("SLURM_STEP_ID");
	uint64_t step;

	return text && *text && (!value_u64(text, &step) || step < SLURM_STEP_RESERVED);
}

static bool
number(const char *name, const char *text, uint64_t max, uint32_t *out, char why[512])
{
	uint64_t v;

	if (!value_u64(text, &v) || v > max) {
		snprintf(why, 512, "%s is '%s', not a whole number from 0 to %llu", name, text, (unsigned long long)max);
		return false;
	}
	*out = (uint32_t)v;
	return true;
}

bool
launch_read(launch_getenv *get, struct launch *out, char text[512])
{
	*out = (struct launch){ .found = false };
	for (size_t i = 0; i < N_SETS; i++) {
		const char *rank = get(sets[i].rank), *size = get(sets[i].size);

		if (!rank && !size && !(i == SLURM && get("SLURM_JOB_ID")))
			continue;
		if (i == SLURM && !slurm_step(get)) {
			snprintf(text, 512,
				"SLURM_STEP_ID is not set: this is a Slurm allocation, not a step; start the ranks with srun, or give --rank and --world");
			return false;
		}
		if (!rank || !size) {
			snprintf(text, 512, "%s is set and %s is not: half of a launcher's variables; set both, or give --rank and --world",
				rank ? sets[i].rank : size ? sets[i].size : "SLURM_STEP_ID", rank ? sets[i].size : sets[i].rank);
			return false;
		}
		*out = (struct launch){ .found = true, .rank_from = sets[i].rank, .size_from = sets[i].size };
		if (!number(sets[i].rank, rank, UINT32_MAX, &out->rank, text) || !number(sets[i].size, size, UINT32_MAX, &out->size, text))
			return false;
		if (out->rank >= out->size) {
			snprintf(text, 512, "%s is %s and %s is %s: the rank must be below the count", sets[i].rank, rank, sets[i].size, size);
			return false;
		}
		return true;
	}
	return true;
}

bool
launch_address(launch_getenv *get, char at[320], char text[512])
{
	const char *host = get("MASTER_ADDR"), *port = get("ISTHMUS_PORT"), *master_port = get("MASTER_PORT");
	uint64_t number_of_port = 0;

	if (port && (!value_u64(port, &number_of_port) || number_of_port == 0 || number_of_port > 65535)) {
		snprintf(text, 512,
			"ISTHMUS_PORT is '%s', not a port number (a Kubernetes service of that name sets it so)%s%s%s: give --at tcp://HOST:PORT or dir:/FOLDER",
			port, master_port ? "; MASTER_PORT '" : "", master_port ? master_port : "",
			master_port ? "' is the launcher's and is not used" : "");
		return false;
	}
	if (!host || !*host || !port) {
		snprintf(text, 512, "no meeting place: give --at tcp://HOST:PORT or dir:/FOLDER, or set MASTER_ADDR and ISTHMUS_PORT%s%s%s",
			master_port ? " (MASTER_PORT '" : "", master_port ? master_port : "",
			master_port ? "' is the launcher's and is not used)" : "");
		return false;
	}
	{
		bool bare6 = strchr(host, ':') && host[0] != '[';

		snprintf(at, 320, "tcp://%s%s%s:%s", bare6 ? "[" : "", host, bare6 ? "]" : "", port);
	}
	return true;
}
