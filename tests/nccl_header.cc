/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_header.cc - our declarations of NCCL (src/backends/nccl/abi.h) against a real nccl.h: compiles, or says what differs. C++,
 * because old headers have some types there only. Built by nccl_header_test.sh.
 */
#include "backends/nccl/abi.h"

#include <nccl.h>
#include <type_traits>

/* Two arguments go the same way: in as many bytes, and as a pointer, a struct or a number. */
template <class A, class B> constexpr bool
same_way()
{
	return sizeof(A) == sizeof(B) && std::is_pointer<A>::value == std::is_pointer<B>::value && std::is_class<A>::value == std::is_class<B>::value;
}

template <class A, class B> struct same {
	static constexpr bool value = false;
};

template <class R, class... A, class S, class... B> struct same<R (*)(A...), S (*)(B...)> {
	template <class X, class Y, bool as_many = X::n == Y::n> struct all {
		static constexpr bool value = false;
	};
	template <class... T> struct list {
		static constexpr unsigned n = sizeof...(T);
	};
	template <class... T, class... U> struct all<list<T...>, list<U...>, true> {
		static constexpr bool
		each()
		{
			bool ok = true;
			bool one[] = { true, same_way<T, U>()... };

			for (bool b : one)
				ok = ok && b;
			return ok;
		}
		static constexpr bool value = each();
	};
	static constexpr bool value = same_way<R, S>() && all<list<A...>, list<B...>>::value;
};

#define CALL(name, symbol) \
	static_assert(same<decltype(&symbol), decltype(nccl_calls::name)>::value, #symbol " takes other arguments");
CALL(get_version, ncclGetVersion)
CALL(error_string, ncclGetErrorString)
CALL(last_error, ncclGetLastError)
CALL(get_unique_id, ncclGetUniqueId)
CALL(init_rank_config, ncclCommInitRankConfig)
CALL(finalize, ncclCommFinalize)
CALL(destroy, ncclCommDestroy)
CALL(abort, ncclCommAbort)
CALL(async_error, ncclCommGetAsyncError)
CALL(group_start, ncclGroupStart)
CALL(group_end, ncclGroupEnd)
CALL(send, ncclSend)
CALL(recv, ncclRecv)
CALL(broadcast, ncclBroadcast)
CALL(all_gather, ncclAllGather)
CALL(all_reduce, ncclAllReduce)
CALL(reduce_scatter, ncclReduceScatter)
#if NCCL_VERSION_CODE >= 22803
CALL(all_to_all, ncclAlltoAll)
CALL(gather, ncclGather)
CALL(scatter, ncclScatter)
#endif
#if NCCL_VERSION_CODE >= 22907
CALL(suspend, ncclCommSuspend)
CALL(resume, ncclCommResume)
#endif

#define VALUE(ours, theirs) static_assert((int)(ours) == (int)(theirs), #theirs " has another value");
VALUE(NCCL_SUCCESS, ncclSuccess)
VALUE(NCCL_CUDA_ERROR, ncclUnhandledCudaError)
VALUE(NCCL_SYSTEM_ERROR, ncclSystemError)
VALUE(NCCL_INTERNAL_ERROR, ncclInternalError)
VALUE(NCCL_INVALID_ARGUMENT, ncclInvalidArgument)
VALUE(NCCL_INVALID_USAGE, ncclInvalidUsage)
VALUE(NCCL_REMOTE_ERROR, ncclRemoteError)
VALUE(NCCL_IN_PROGRESS, ncclInProgress)
#if NCCL_VERSION_CODE >= 23003
VALUE(NCCL_TIMEOUT, ncclTimeout)
#endif
VALUE(NCCL_I8, ncclInt8)
VALUE(NCCL_U8, ncclUint8)
VALUE(NCCL_I32, ncclInt32)
VALUE(NCCL_U32, ncclUint32)
VALUE(NCCL_I64, ncclInt64)
VALUE(NCCL_U64, ncclUint64)
VALUE(NCCL_F16, ncclFloat16)
VALUE(NCCL_F32, ncclFloat32)
VALUE(NCCL_F64, ncclFloat64)
VALUE(NCCL_BF16, ncclBfloat16)
#if NCCL_VERSION_CODE >= 22403
VALUE(NCCL_F8E4M3, ncclFloat8e4m3)
VALUE(NCCL_F8E5M2, ncclFloat8e5m2)
#endif
VALUE(NCCL_SUM, ncclSum)
VALUE(NCCL_PROD, ncclProd)
VALUE(NCCL_MAX, ncclMax)
VALUE(NCCL_MIN, ncclMin)
VALUE(NCCL_ID_BYTES, NCCL_UNIQUE_ID_BYTES)
VALUE(sizeof(nccl_id), sizeof(ncclUniqueId))
VALUE(NCCL_OLDEST, NCCL_VERSION(2, 18, 1))

#define PLACE(ours, theirs) \
	static_assert(offsetof(nccl_config, ours) == offsetof(ncclConfig_t, theirs) && \
		sizeof(((nccl_config *)0)->ours) == sizeof(((ncclConfig_t *)0)->theirs), "ncclConfig_t has " #theirs " elsewhere");
static_assert(sizeof(ncclConfig_t) <= sizeof(nccl_config), "ncclConfig_t has grown");
PLACE(size, size)
PLACE(magic, magic)
PLACE(version, version)
PLACE(blocking, blocking)
PLACE(cga_cluster_size, cgaClusterSize)
PLACE(min_ctas, minCTAs)
PLACE(max_ctas, maxCTAs)
PLACE(net_name, netName)
PLACE(split_share, splitShare)
#if NCCL_VERSION_CODE >= 22602
PLACE(traffic_class, trafficClass)
#endif
#if NCCL_VERSION_CODE >= 22703
PLACE(comm_name, commName)
PLACE(collnet_enable, collnetEnable)
PLACE(cta_policy, CTAPolicy)
PLACE(shrink_share, shrinkShare)
PLACE(nvls_ctas, nvlsCTAs)
#endif
#if NCCL_VERSION_CODE >= 22803
PLACE(channels_per_net_peer, nChannelsPerNetPeer)
PLACE(nvlink_centric_sched, nvlinkCentricSched)
#endif
#if NCCL_VERSION_CODE >= 22902
PLACE(graph_usage_mode, graphUsageMode)
PLACE(num_rma_ctx, numRmaCtx)
#endif
#if NCCL_VERSION_CODE >= 23003
PLACE(max_p2p_peers, maxP2pPeers)
#endif
#if NCCL_VERSION_CODE >= 23102
PLACE(graph_stream_ordering, graphStreamOrdering)
PLACE(launch_order_implicit, launchOrderImplicit)
PLACE(num_rma_sig, numRmaSig)
PLACE(rma_eager_init, rmaEagerInit)
PLACE(host_cft_mode, hostCftMode)
#endif
#if NCCL_VERSION_CODE >= 23203
PLACE(nvls_host_mode, nvlsHostMode)
#endif

int main() { return 0; }
