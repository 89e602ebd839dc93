/* SPDX-License-Identifier: Apache-2.0
 *
 * error.h - the one list of things that can go wrong, and the struct that tells a caller about one of them.
 *
 * The same names stand in Python and in JSON, without the prefix. docs/errors.md says for each what to do next.
 */
#ifndef ISTHMUS_ERROR_H
#define ISTHMUS_ERROR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IST_API __attribute__((visibility("default")))

/* What must be thrown away before trying again. */
enum ist_scope { IST_SCOPE_CALL = 0, IST_SCOPE_PEER = 1, IST_SCOPE_GROUP = 2, IST_SCOPE_BACKEND = 3 };

/* X(name, number, what it broke, text, next step). Numbers are wire and ABI: never reuse one. */
#define IST_ERR_LIST(X) \
	X(OK, 0, CALL, "success", "") \
	X(INVALID_ARGUMENT, 1, CALL, "an argument is outside its documented range", "correct the argument") \
	X(NO_MEMORY, 2, CALL, "out of memory", "free memory, raise the limit, or use a smaller bucket") \
	X(UNSUPPORTED, 3, CALL, "this backend, device or build can't do that", "choose another backend; 'isthmus backends' lists them") \
	X(BUSY, 4, CALL, "in use by another call", "wait for the other call to end") \
	X(BAD_PLUGIN, 5, BACKEND, "the plug-in breaks its contract", "run 'isthmus check' on it") \
	X(BAD_HANDLE, 6, CALL, "this is not a live handle of that kind", "use a handle that was not freed, in the process that made it") \
	X(NOT_MEMBER, 7, CALL, "the caller is not in the list of members", "call only on the ranks listed") \
	X(CONFLICT, 8, CALL, "another live holder has the name, rank or place", "stop the other holder or choose another name or rank") \
	X(TIMEOUT, 9, CALL, "the deadline passed", "start the members named, or give more time with --timeout") \
	X(NO_PROGRESS, 10, PEER, "nothing was heard from a member for too long", "look at the member named: stopped, swapped out or cut off") \
	X(BAD_CONFIG, 11, CALL, "a setting has a bad value", "correct the setting") \
	X(NO_SPACE, 12, CALL, "no space left", "free space at the destination") \
	X(IO, 13, CALL, "a system call failed", "see the system's own error") \
	X(INTERNAL, 14, CALL, "a bug in this library", "report it with the detail") \
	X(LIMIT, 15, CALL, "a stated limit was reached", "stay under the limit or raise it") \
	X(DENIED, 16, CALL, "not permitted", "use the credentials of the owner") \
	X(PEER_LOST, 20, GROUP, "a member died or its connection broke", "form a new group without the member, or restart it") \
	X(ABORTED, 21, GROUP, "the group was aborted", "form a new group") \
	X(MISMATCH, 22, GROUP, "members disagree on sizes, types, roots or settings", "make the arguments equal on all members") \
	X(ORDER_MISMATCH, 23, GROUP, "members called different operations", "issue the operations of a group in one order on all members") \
	X(PEER_LEFT, 24, GROUP, "a member left in good order", "form a new group without the member") \
	X(BAD_SECRET, 25, PEER, "the peer's proof of the secret does not hold", "give every member the same secret file") \
	X(INSECURE, 26, CALL, "a secret is needed off loopback", "give --secret-file, or say --insecure") \
	X(VERSION_MISMATCH, 27, PEER, "protocol ranges, required features or versions of a backend do not meet", "update the older side") \
	X(UNKNOWN_GROUP, 28, PEER, "the other side knows no group of that name", "give every member the same --group") \
	X(WRONG_PEER, 29, PEER, "something else answers at that address", "check the address and the port") \
	X(SLOW_PEER, 30, PEER, "a member reads too slowly", "look at the member named") \
	X(EVICTED, 31, GROUP, "this member was removed by the others", "join again") \
	X(DEVICE_CONFLICT, 32, CALL, "two ranks on one device", "give each rank a device of its own") \
	X(BAD_HEADER, 40, CALL, "malformed safetensors header", "make the file again") \
	X(BAD_ENTRY, 41, CALL, "malformed entry in a safetensors header", "make the file again") \
	X(BAD_OFFSETS, 42, CALL, "offsets out of range, reversed, with holes or overlapping", "make the file again") \
	X(TRUNCATED, 43, CALL, "the file is shorter than its header says", "fetch the file again") \
	X(OVERFLOW, 44, CALL, "a size does not fit into 64 bits", "make the file again") \
	X(DUPLICATE_KEY, 45, CALL, "a name stands twice", "make the file again with unique names") \
	X(DUPLICATE_ACROSS_FILES, 46, CALL, "a tensor stands in two files and no index says which counts", "add an index.json or remove the stray file") \
	X(BAD_NAME, 47, CALL, "a name holds bytes that names can't hold", "rename it") \
	X(BAD_FORMAT, 48, CALL, "not the expected format", "give the expected format") \
	X(UNKNOWN_DTYPE, 49, CALL, "unknown dtype", "use a dtype of the safetensors format") \
	X(DTYPE_MISMATCH, 50, CALL, "dtype or shape differ between the two sides", "make both sides agree, or ask for a cast") \
	X(NOT_DENSE, 51, CALL, "the tensor's memory has strides", "make it contiguous first") \
	X(NOT_SAFETENSORS, 52, CALL, "not a safetensors file", "give a .safetensors file") \
	X(MISSING_SHARD, 53, CALL, "a file that the index names can't be opened", "fetch the missing file") \
	X(MISSING_TENSOR, 54, CALL, "a tensor that should be there is not", "add the tensor") \
	X(FILE_CHANGED, 55, CALL, "the file changed after it was registered", "register it again") \
	X(DIGEST, 56, CALL, "bytes arrived that are not the source's", "send the update again; check memory and links if it repeats") \
	X(INCOMPLETE, 57, CALL, "parts are missing", "register or send all parts") \
	X(OVERLAP, 58, CALL, "two sources give the same tensor differently", "let the sources be equal, or disjoint") \
	X(EMPTY_UPDATE, 59, CALL, "the update holds no tensor", "register a checkpoint with tensors") \
	X(NO_RECEIVERS, 60, CALL, "nobody would receive the update", "add a sink to the group") \
	X(DIRTY, 61, CALL, "this consumer holds a torn update", "run one full update") \
	X(BAD_STATE, 62, CALL, "not possible in this state", "see the detail for the state") \
	X(STALE, 63, CALL, "the registration or handle is of an earlier generation", "ask for it again") \
	X(OLD_VERSION, 64, CALL, "a version not above what is committed", "give a higher version, or say --force")

/* An error code: 0 is success. */
typedef int32_t ist_err;

enum {
#define IST_ERR_ENUM_(name, num, scope, text, next) IST_##name = (num),
	IST_ERR_LIST(IST_ERR_ENUM_)
#undef IST_ERR_ENUM_
};

#define IST_ERROR_RANKS 64
#define IST_NO_BUCKET UINT64_MAX

/* What one rank answered, where an operation failed on several. */
struct ist_rank_error {
	uint32_t rank;
	ist_err code;
};

/* Everything known about one failure. The caller sets struct_size (ist_error_init does) and owns it; there is
 * nothing to free. Texts are UTF-8 and end in 0; "" where unknown. */
struct ist_error {
	uint32_t struct_size;
	ist_err code;
	uint32_t scope;      /* enum ist_scope */
	int32_t sys;         /* errno or the library's own number; 0: none */
	uint64_t bucket;     /* IST_NO_BUCKET: none */
	uint32_t n_ranks;    /* ranks filled in below */
	uint32_t n_per_rank;
	uint32_t ranks[IST_ERROR_RANKS];                 /* missing, lost or disagreeing */
	struct ist_rank_error per_rank[IST_ERROR_RANKS];
	char op[32];         /* the call or phase */
	char tensor[512];
	char next[512];      /* what to do */
	char detail[4096];
};

/* "PEER_LOST" for IST_PEER_LOST; "UNKNOWN" for a number that is not in the list. Never NULL, static storage. */
IST_API const char *ist_err_name(ist_err err);
IST_API const char *ist_err_text(ist_err err);
IST_API const char *ist_err_next(ist_err err);
IST_API uint32_t ist_err_scope(ist_err err);
/* The number of a name, or IST_INTERNAL's where there is none such. For bindings. */
IST_API ist_err ist_err_from_name(const char *name);
/* Makes *err say "success". */
IST_API void ist_error_init(struct ist_error *err);

#ifdef __cplusplus
}
#endif
#endif
