/* SPDX-License-Identifier: Apache-2.0
 *
 * sync_kit.h - a crew that runs whole updates: what each member registers, what it is told, and what its sink holds
 * afterwards. The first n_sources members give, the others take, unless a test says otherwise.
 */
#ifndef ISTHMUS_TESTS_SYNC_KIT_H
#define ISTHMUS_TESTS_SYNC_KIT_H

#include "crew.h"

#define MIB (UINT64_C(1) << 20)
enum { KIT_TENSORS = 21 };

enum when { NEVER = 0, AT_BEGIN, AT_FIRST_PIECE, AT_LAST_PIECE, AT_PREPARE };

struct kit;
struct member {
	struct kit *kit;
	/* set by a test before the first run */
	bool source, sink, custom, in_place, odd_shape;
	bool own_sink;                /* a source with a sink that looks at what it gives, and may fail */
	uint32_t part, parts, on_loss;
	uint64_t bucket;
	/* at any time */
	enum when fail;
	int64_t piece_ns;             /* its own sink takes so long for a piece */
	bool register_again;
	/* what came of it */
	struct ist_sync *sync;
	struct ist_checkpoint *ck;
	struct ist_sink *to;
	uint8_t **tensors;            /* source: its memory; custom sink: what came */
	uint64_t n, first;            /* source: how many, of which the first is t.<first> */
	char (*names)[32];
	uint64_t *sizes, *filled;
	uint64_t n_taken, left;
	uint64_t last_index;
	bool in_order;
	uint32_t commits, aborts;
	struct ist_report report;
	struct ist_error error;
	ist_err code;
	uint32_t state;
	uint64_t version, to_;        /* of its state */
};

struct kit {
	struct crew crew;
	struct member members[FAKE_RANKS];
	uint32_t n, n_sources;
	uint64_t bucket, wish, tiny;
	uint32_t slots;               /* of the ring; 0: as many as there are where nobody says */
	uint64_t each;                /* bytes of a tiny one; 0: 4096 */
	uint64_t other_wish;          /* of the last member; 0: as the others */
	uint32_t on_loss, force;
	const char *label;
	uint32_t content;             /* which bytes the sources hold */
	uint32_t change_one;          /* one more byte is other in this tensor */
	bool disjoint, no_gather, null_sinks;
	bool small;                   /* the large tensors are smaller */
	bool folders, from_folder, own_folders, made;
	ist_err want;
	uint64_t dead_ok;             /* bit r: rank r may fail in its own way, it is killed */
	char tmp[200], digest[IST_DIGEST_TEXT];
};

void kit_new(struct kit *k, uint32_t n, uint32_t n_sources);
void kit_free(struct kit *k);
/* One gather and one update by all; what comes of it must be want, on all. */
void kit_run(struct kit *k, ist_err want);
/* Every sink holds what the sources hold. */
void kit_check_sinks(struct kit *k);
uint64_t kit_bytes(const struct kit *k);    /* of one copy */
uint64_t kit_nonempty(const struct kit *k); /* tensors with bytes */
/* Registers a source on rank; what comes of it must be want. It is taken back. */
void kit_offer_from(struct kit *k, uint32_t rank, ist_err want);

/* Sinks become folders under a temporary one; the next run may take them as sources. */
void kit_folders(struct kit *k);
void kit_from_folder(struct kit *k, uint32_t n_sources);
bool kit_same_file(const char *a, const char *b);
const char *kit_digest_of(struct kit *k, const char *path);
/* Changes a byte so far before the end of a file. */
void kit_flip_at_end(const char *path, long before);

#endif
