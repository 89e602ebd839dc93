/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs.c - the table of verbs: what --help, the man pages and the dispatcher know about each.
 */
#include "cli.h"

#define MEETING (SET_COMMON | SET_MEET | SET_NET | SET_MOVE)

static const struct verb verbs[] = {
	{ .name = "version", .args = "", .summary = "show version, ABI, protocol range, build and features",
		.text = "isthmus --version is the same.", .example = "isthmus version --json", .sets = SET_COMMON, .run = cmd_version },
	{ .name = "backends", .args = "", .summary = "list backends and devices, usable or why not",
		.text = "A row for each backend and device: its name, whether it can be used here or why not, library file and version, which "
			"operations it has itself (native) and which the core composes from its send and receive. Nothing is loaded or "
			"started for it.",
		.example = "isthmus backends", .sets = SET_COMMON, .run = cmd_backends },
	{ .name = "inspect", .args = "CHECKPOINT", .summary = "list a checkpoint's tensors, refuse what is malformed",
		.text = "CHECKPOINT is a .safetensors file, a directory or an index.json. Shows each tensor with dtype, shape, bytes and file, "
			"and the totals. With --digests everything is read and the digest of each tensor and of the whole is shown; the format "
			"of digests is in docs/digest.md. A malformed file is refused with file, tensor and byte.",
		.example = "isthmus inspect model/ --digests --json", .sets = SET_COMMON | SET_INSPECT, .args_min = 1, .args_max = 1,
		.run = cmd_inspect },
	{ .name = "store", .args = "", .summary = "run a meeting place on its own",
		.text = "Optional: otherwise a member hosts the meeting place. Prints its address, serves until a signal ends it. A formed group "
			"needs it no longer, and a restarted one is filled again.",
		.example = "isthmus store --bind 127.0.0.1:0", .sets = SET_COMMON | SET_STORE, .no_deadline = true, .run = cmd_store },
	{ .name = "push", .args = "CHECKPOINT", .summary = "give a checkpoint to the sinks of a group",
		.text = "This process is a source. It meets the others, agrees with them on one list of tensors and a plan, gives its share and "
			"waits until every sink has verified every tensor. Sources with equal checkpoints share the work; sources with "
			"disjoint names give all of theirs, and the union is the checkpoint. The same name with another shape or digest is "
			"OVERLAP.\n\n"
			"ISTHMUS_FAULT=flip flips one byte on the way, to see that it is found.",
		.example = "isthmus push model/ --at tcp://127.0.0.1:29600 --world 2 --rank 0",
		.sets = MEETING | SET_PUSH, .args_min = 1, .args_max = 1, .run = cmd_push },
	{ .name = "pull", .args = "DEST", .summary = "take one version from the sources of a group",
		.text = "This process is a sink. DEST is a directory, shm:NAME (one safetensors file /dev/shm/NAME, mode 0600), mem: (each tensor "
			"into its own place in memory, held until the outcome is known) or null: (receive, verify, drop).\n\n"
			"A directory becomes a checkpoint equal to the source: same file names, byte-identical files, and the other regular "
			"files of the source's top folder unless --weights-only. It is built beside DEST under a temporary name, synced, and "
			"takes its name only after verification. An existing checkpoint is exchanged in one step. What a killed pull left "
			"behind is removed by the next one.",
		.example = "isthmus pull copy/ --at tcp://127.0.0.1:29600 --world 2 --rank 1\nisthmus pull null: --rank-offset 2 --world 5",
		.sets = MEETING | SET_PULL, .args_min = 1, .args_max = 1, .run = cmd_pull },
	{ .name = "status", .args = "", .summary = "ask a meeting place for its members",
		.text = "Members, host and pid, state (JOINING, CLEAN v, UPDATING v->w, DIRTY), the version they serve and the seconds since they were "
			"heard. Best effort: members renew a lease of 15 s. With --watch and --json one document a line.",
		.example = "isthmus status --at tcp://127.0.0.1:29600 --version-at-least 7", .sets = SET_COMMON | SET_STATUS, .run = cmd_status },
	{ .name = "bench", .args = "WHAT", .summary = "measure group, barrier, objects, broadcast, gather, update or load",
		.text = "Every row starts behind a barrier and takes the time of the slowest rank. Buffers are touched beforehand, and cold: each "
			"sample takes another part of an arena far larger than the caches. Limits are measured in the same run, among the same "
			"ranks, as their best sample: through shared memory what all ranks together, or each receiver for itself, can copy "
			"with the best instructions; over TCP what plain sockets carry along the same chain; for load the better of plain "
			"reads and copies from a mapping of the same files; on devices one copy between the same kinds of memory. update puts "
			"each sink into a process of its own, each tensor into a place of its own. gather is every rank a source of --tensors of its own, 400 where nothing is said. load with "
			"--device reads files onto it, --bucket bytes at a time.\n\n"
			"--peers runs other libraries beside, on the machine of rank 0, for the rows that they have as well.",
		.example = "isthmus bench broadcast --ranks 4\nisthmus bench update --ranks 2 --layout qwen3-0.6b --layers 4",
		.sets = MEETING | SET_BENCH, .args_min = 1, .args_max = 1, .run = cmd_bench },
	{ .name = "run", .args = "CMD...", .summary = "start N processes of one program on this machine",
		.text = "Sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT (free for the programs' own use), and hosts a meeting "
			"place on a port bound once, ISTHMUS_PORT. Signals are passed on. When one process fails the others are ended, and its "
			"status is the result. The processes do not outlive run, however it ends.",
		.example = "isthmus run -n 2 -- sh -c 'if [ $RANK = 0 ]; then isthmus push model/; else isthmus pull copy/; fi'",
		.sets = SET_COMMON | SET_RUN | SET_SECRET, .args_min = 1, .args_max = -1, .no_deadline = true, .run = cmd_run },
	{ .name = "make-checkpoint", .args = "DIR", .summary = "write a checkpoint of random bytes in a known layout",
		.text = "Names, shapes and dtype of the model, in files of at most 5 GB with an index, and a config.json. Equal seeds give equal "
			"bytes. DIR is written under a temporary name beside it and then renamed; it must not exist or must be empty.",
		.example = "isthmus make-checkpoint model/ --layout qwen3-0.6b --layers 2\nisthmus make-checkpoint many/ --tensors 20000 --bytes 1GiB",
		.sets = SET_COMMON | SET_MAKE, .args_min = 1, .args_max = 1, .run = cmd_make_checkpoint },
	{ .name = "check", .args = "PLUGIN.so", .summary = "run the conformance suite on a backend or device",
		.text = "PLUGIN.so is the path of a plug-in. Each check runs in a process of its "
			"own with a deadline, so that a crash is reported by name. Says what is native, what falls back and what is wrong.",
		.example = "isthmus check ./libmine.so", .sets = SET_COMMON, .args_min = 1, .args_max = 1, .run = cmd_check },
	{ .name = "demo", .args = "", .summary = "push weights from a trainer world into an inference world",
		.text = "A trainer world of 2 processes and an inference world of 3, each busy with barriers of its own; one group over all five; a "
			"checkpoint broadcast from the trainers, every digest compared. ISTHMUS_FAULT=flip flips a byte on the way: exit "
			"status 3, naming the tensor.",
		.example = "isthmus demo\nMODEL=/models/Qwen3-0.6B WORLD=mpi isthmus demo", .sets = SET_COMMON | SET_DEMO, .no_deadline = true,
		.run = cmd_demo },
	{ .name = "demo-member", .args = "CHECKPOINT|DEST", .summary = "one member of the demo", .text = "", .example = "",
		.sets = MEETING | SET_PUSH | SET_PULL | SET_MEMBER, .args_min = 1, .args_max = 1, .hidden = true, .run = cmd_demo_member },
};

const struct verb *
verb_row(uint32_t index)
{
	return index < sizeof(verbs) / sizeof(verbs[0]) ? &verbs[index] : NULL;
}
