/* SPDX-License-Identifier: Apache-2.0
 *
 * abi.h - what we use of NCCL's binary interface, declared by ourselves: the library is opened at run time, and its headers
 * are not needed to build. RCCL has the same. tests/nccl_header_test.sh holds this page to a real nccl.h where there is one.
 */
#ifndef ISTHMUS_NCCL_ABI_H
#define ISTHMUS_NCCL_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef struct nccl_comm *nccl_comm_t; /* opaque */
typedef void *nccl_stream_t;           /* cudaStream_t, the same as CUstream */

enum {
	NCCL_SUCCESS = 0, NCCL_CUDA_ERROR, NCCL_SYSTEM_ERROR, NCCL_INTERNAL_ERROR, NCCL_INVALID_ARGUMENT, NCCL_INVALID_USAGE,
	NCCL_REMOTE_ERROR, NCCL_IN_PROGRESS,
	NCCL_TIMEOUT /* from 2.30.3 on; before, no result at all */
};
enum {
	NCCL_I8 = 0, NCCL_U8, NCCL_I32, NCCL_U32, NCCL_I64, NCCL_U64, NCCL_F16, NCCL_F32, NCCL_F64, NCCL_BF16,
	NCCL_F8E4M3, NCCL_F8E5M2 /* from 2.24 on */
};
enum { NCCL_SUM = 0, NCCL_PROD, NCCL_MAX, NCCL_MIN };
enum { NCCL_SUSPEND_MEM = 1 };

#define NCCL_ID_BYTES 128
struct nccl_id {
	char bytes[NCCL_ID_BYTES];
};

/* 2.32's, the longest so far. A library copies as many bytes as it knows, and takes of these what version covers. What is
 * not set must say so: INT_MIN, NULL; zeros are refused, and padding becomes a field in the next release. */
#define NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_CONFIG_VERSION 23203
struct nccl_config {
	size_t size;
	unsigned magic, version;
	int blocking, cga_cluster_size, min_ctas, max_ctas;
	const char *net_name;
	int split_share, traffic_class;
	const char *comm_name;
	int collnet_enable, cta_policy, shrink_share, nvls_ctas, channels_per_net_peer, nvlink_centric_sched, graph_usage_mode,
		num_rma_ctx, max_p2p_peers, graph_stream_ordering, launch_order_implicit, num_rma_sig, rma_eager_init, host_cft_mode,
		nvls_host_mode, padding;
};

/* X(name here, symbol, result, arguments, 1: every version that we take has it). */
#define NCCL_CALLS(X) \
	X(get_version, "ncclGetVersion", int, (int *version), 1) \
	X(error_string, "ncclGetErrorString", const char *, (int result), 1) \
	X(last_error, "ncclGetLastError", const char *, (nccl_comm_t comm), 1) \
	X(get_unique_id, "ncclGetUniqueId", int, (struct nccl_id *id), 1) \
	X(init_rank_config, "ncclCommInitRankConfig", int, \
		(nccl_comm_t *comm, int n, struct nccl_id id, int rank, struct nccl_config *config), 1) \
	X(finalize, "ncclCommFinalize", int, (nccl_comm_t comm), 1) \
	X(destroy, "ncclCommDestroy", int, (nccl_comm_t comm), 1) \
	X(abort, "ncclCommAbort", int, (nccl_comm_t comm), 1) \
	X(async_error, "ncclCommGetAsyncError", int, (nccl_comm_t comm, int *result), 1) \
	X(group_start, "ncclGroupStart", int, (void), 1) \
	X(group_end, "ncclGroupEnd", int, (void), 1) \
	X(send, "ncclSend", int, (const void *from, size_t n, int type, int peer, nccl_comm_t comm, nccl_stream_t stream), 1) \
	X(recv, "ncclRecv", int, (void *to, size_t n, int type, int peer, nccl_comm_t comm, nccl_stream_t stream), 1) \
	X(broadcast, "ncclBroadcast", int, \
		(const void *from, void *to, size_t n, int type, int root, nccl_comm_t comm, nccl_stream_t stream), 1) \
	X(all_gather, "ncclAllGather", int, (const void *from, void *to, size_t n, int type, nccl_comm_t comm, nccl_stream_t stream), 1) \
	X(all_reduce, "ncclAllReduce", int, \
		(const void *from, void *to, size_t n, int type, int op, nccl_comm_t comm, nccl_stream_t stream), 1) \
	X(reduce_scatter, "ncclReduceScatter", int, \
		(const void *from, void *to, size_t n, int type, int op, nccl_comm_t comm, nccl_stream_t stream), 1) \
	X(all_to_all, "ncclAlltoAll", int, (const void *from, void *to, size_t n, int type, nccl_comm_t comm, nccl_stream_t stream), 0) \
	X(gather, "ncclGather", int, \
		(const void *from, void *to, size_t n, int type, int root, nccl_comm_t comm, nccl_stream_t stream), 0) \
	X(scatter, "ncclScatter", int, \
		(const void *from, void *to, size_t n, int type, int root, nccl_comm_t comm, nccl_stream_t stream), 0) \
	X(suspend, "ncclCommSuspend", int, (nccl_comm_t comm, int flags), 0) \
	X(resume, "ncclCommResume", int, (nccl_comm_t comm), 0)

struct nccl_calls {
#define FIELD(name, symbol, result, args, must) result(*name) args;
	NCCL_CALLS(FIELD)
#undef FIELD
};

/* Versions as ncclGetVersion says them. */
#define NCCL_V(major, minor, patch) ((major) * 10000 + (minor) * 100 + (patch))
#define NCCL_OLDEST NCCL_V(2, 18, 1)   /* its abort needs no peer */
#define NCCL_FP8 NCCL_V(2, 24, 0)      /* reduces 8-bit floats */
#define NCCL_ALL_NATIVE NCCL_V(2, 28, 3) /* has all-to-all, gather and scatter */
#define NCCL_SHARES_SINCE NCCL_V(2, 30, 0) /* several ranks may have one device, if NCCL_MULTI_RANK_GPU_ENABLE says so */

#endif
