/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_header.cc - src/devices/cuda_api.h beside a real cuda.h: each call has as many arguments, each of the same size, pointers
 * where there are pointers; numbers have the same values. Compiled, not run (tests/cuda_header_test.sh).
 */
#include <cuda.h>
#include <cstddef>
#include <type_traits>

namespace ours {
#include "devices/cuda_api.h"
}

template <class A, class B> constexpr bool alike()
{
	return sizeof(A) == sizeof(B) && std::is_pointer<A>::value == std::is_pointer<B>::value;
}

template <class A, class B> struct same {
	static constexpr bool value = false;
};

template <class... A, class... B> struct same<CUresult (*)(A...), int (*)(B...)> {
	static constexpr bool all()
	{
		if constexpr (sizeof...(A) == sizeof...(B))
			return (alike<A, B>() && ...);
		else
			return false;
	}
	static constexpr bool value = all();
};

/* cuda.h maps each name to the one with the suffix, so the types are those of the symbol that is looked up. */
#define CALL(member, function) static_assert(same<decltype(&::function), decltype(ours::ist__cuda_api::member)>::value, #function)
CALL(init, cuInit);
CALL(driver_version, cuDriverGetVersion);
CALL(error_name, cuGetErrorName);
CALL(error_text, cuGetErrorString);
CALL(device_count, cuDeviceGetCount);
CALL(device_get, cuDeviceGet);
CALL(device_name, cuDeviceGetName);
CALL(device_attribute, cuDeviceGetAttribute);
CALL(device_total, cuDeviceTotalMem);
CALL(device_uuid, cuDeviceGetUuid);
CALL(context_retain, cuDevicePrimaryCtxRetain);
CALL(context_release, cuDevicePrimaryCtxRelease);
CALL(context_push, cuCtxPushCurrent);
CALL(context_pop, cuCtxPopCurrent);
CALL(mem_info, cuMemGetInfo);
CALL(mem_alloc, cuMemAlloc);
CALL(mem_free, cuMemFree);
CALL(mem_range, cuMemGetAddressRange);
CALL(host_alloc, cuMemHostAlloc);
CALL(host_free, cuMemFreeHost);
CALL(host_register, cuMemHostRegister);
CALL(host_unregister, cuMemHostUnregister);
CALL(copy, cuMemcpyAsync);
CALL(stream_create, cuStreamCreate);
CALL(stream_destroy, cuStreamDestroy);
CALL(stream_wait, cuStreamWaitEvent);
CALL(event_create, cuEventCreate);
CALL(event_destroy, cuEventDestroy);
CALL(event_record, cuEventRecord);
CALL(event_query, cuEventQuery);
CALL(event_elapsed, cuEventElapsedTime);
CALL(ipc_get, cuIpcGetMemHandle);
CALL(ipc_open, cuIpcOpenMemHandle);
CALL(ipc_close, cuIpcCloseMemHandle);
CALL(ipc_event_get, cuIpcGetEventHandle);
CALL(ipc_event_open, cuIpcOpenEventHandle);
CALL(pointer, cuPointerGetAttribute);
CALL(module_load, cuModuleLoadData);
CALL(module_unload, cuModuleUnload);
CALL(module_function, cuModuleGetFunction);
CALL(launch, cuLaunchKernel);

#define NUMBER(mine, theirs) static_assert(int(ours::mine) == int(theirs), #mine)
NUMBER(CU_OK, CUDA_SUCCESS);
NUMBER(CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
NUMBER(CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
NUMBER(CU_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
NUMBER(CU_STUB, CUDA_ERROR_STUB_LIBRARY);
NUMBER(CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
NUMBER(CU_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
NUMBER(CU_NOT_READY, CUDA_ERROR_NOT_READY);
NUMBER(CU_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
NUMBER(CU_NOT_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
NUMBER(CU_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
NUMBER(CU_PCI_BUS, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
NUMBER(CU_PCI_DEVICE, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
NUMBER(CU_PCI_DOMAIN, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
NUMBER(CU_READ_ONLY_REGISTER, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
NUMBER(CU_HOST_NUMA, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
NUMBER(CU_POINTER_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
NUMBER(CU_POINTER_MANAGED, CU_POINTER_ATTRIBUTE_IS_MANAGED);
NUMBER(CU_POINTER_DEVICE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
NUMBER(CU_POINTER_LEGACY_IPC, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
NUMBER(CU_POINTER_START, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
NUMBER(CU_POINTER_SIZE, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
NUMBER(CU_POINTER_POOL, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
NUMBER(CU_TYPE_HOST, CU_MEMORYTYPE_HOST);
NUMBER(CU_TYPE_DEVICE, CU_MEMORYTYPE_DEVICE);
NUMBER(CU_HOST_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
NUMBER(CU_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
NUMBER(CU_HOST_READ_ONLY, CU_MEMHOSTREGISTER_READ_ONLY);
NUMBER(CU_STREAM_NON_BLOCKING, ::CU_STREAM_NON_BLOCKING);
NUMBER(CU_EVENT_NO_TIMING, CU_EVENT_DISABLE_TIMING);
NUMBER(CU_EVENT_INTERPROCESS, ::CU_EVENT_INTERPROCESS);
NUMBER(CU_IPC_LAZY_PEER, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
static_assert(sizeof(ours::cu_ipc) == sizeof(CUipcMemHandle) && sizeof(ours::cu_ipc) == sizeof(CUipcEventHandle), "handles");
