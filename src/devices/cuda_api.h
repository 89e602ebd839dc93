/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_api.h - the calls of NVIDIA's driver library that the CUDA device makes, found at run time: libcuda.so.1 comes with
 * the driver, and its interface only grows. Names are those that the library exports, with the suffix of the version whose
 * types stand here (without it some of them are 32 bits wide). Types and numbers are those of cuda.h 12 and 13, and
 * tests/cuda_header.cc holds them against a real one.
 */
#ifndef ISTHMUS_DEVICES_CUDA_API_H
#define ISTHMUS_DEVICES_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t cu_ptr;                      /* CUdeviceptr */
struct cu_ipc { char reserved[64]; };         /* CUipcMemHandle, CUipcEventHandle: handed over by value */

enum {
	CU_OK = 0, CU_INVALID_VALUE = 1, CU_OUT_OF_MEMORY = 2, CU_NOT_INITIALIZED = 3, CU_STUB = 34, CU_NO_DEVICE = 100, CU_INVALID_DEVICE = 101,
	CU_NOT_READY = 600, CU_ALREADY_REGISTERED = 712, CU_NOT_REGISTERED = 713, CU_NOT_SUPPORTED = 801
};
enum { /* CUdevice_attribute */
	CU_PCI_BUS = 33, CU_PCI_DEVICE = 34, CU_PCI_DOMAIN = 50, CU_READ_ONLY_REGISTER = 113, CU_HOST_NUMA = 134
};
enum { /* CUpointer_attribute */
	CU_POINTER_TYPE = 2, CU_POINTER_MANAGED = 8, CU_POINTER_DEVICE = 9, CU_POINTER_LEGACY_IPC = 10, CU_POINTER_START = 11, CU_POINTER_SIZE = 12,
	CU_POINTER_POOL = 17
};
enum { CU_TYPE_HOST = 1, CU_TYPE_DEVICE = 2 };
enum { CU_HOST_PORTABLE = 1, CU_HOST_READ_ONLY = 8 };
enum { CU_STREAM_NON_BLOCKING = 1, CU_EVENT_NO_TIMING = 2, CU_EVENT_INTERPROCESS = 4, CU_IPC_LAZY_PEER = 1 };

#define IST__CUDA_CALLS(F) \
	F(init, "cuInit", (unsigned flags)) \
	F(driver_version, "cuDriverGetVersion", (int *out)) \
	F(error_name, "cuGetErrorName", (int code, const char **out)) \
	F(error_text, "cuGetErrorString", (int code, const char **out)) \
	F(device_count, "cuDeviceGetCount", (int *out)) \
	F(device_get, "cuDeviceGet", (int *out, int ordinal)) \
	F(device_name, "cuDeviceGetName", (char *out, int room, int device)) \
	F(device_attribute, "cuDeviceGetAttribute", (int *out, int attribute, int device)) \
	F(device_total, "cuDeviceTotalMem_v2", (size_t *out, int device)) \
	F(context_retain, "cuDevicePrimaryCtxRetain", (void **out, int device)) \
	F(context_release, "cuDevicePrimaryCtxRelease_v2", (int device)) \
	F(context_push, "cuCtxPushCurrent_v2", (void *context)) \
	F(context_pop, "cuCtxPopCurrent_v2", (void **out)) \
	F(mem_info, "cuMemGetInfo_v2", (size_t *left, size_t *all)) \
	F(mem_alloc, "cuMemAlloc_v2", (cu_ptr *out, size_t bytes)) \
	F(mem_free, "cuMemFree_v2", (cu_ptr addr)) \
	F(mem_range, "cuMemGetAddressRange_v2", (cu_ptr *base, size_t *bytes, cu_ptr addr)) \
	F(host_alloc, "cuMemHostAlloc", (void **out, size_t bytes, unsigned flags)) \
	F(host_free, "cuMemFreeHost", (void *addr)) \
	F(host_register, "cuMemHostRegister_v2", (void *addr, size_t bytes, unsigned flags)) \
	F(host_unregister, "cuMemHostUnregister", (void *addr)) \
	F(copy, "cuMemcpyAsync", (cu_ptr dst, cu_ptr src, size_t bytes, void *stream)) \
	F(stream_create, "cuStreamCreate", (void **out, unsigned flags)) \
	F(stream_destroy, "cuStreamDestroy_v2", (void *stream)) \
	F(stream_wait, "cuStreamWaitEvent", (void *stream, void *event, unsigned flags)) \
	F(event_create, "cuEventCreate", (void **out, unsigned flags)) \
	F(event_destroy, "cuEventDestroy_v2", (void *event)) \
	F(event_record, "cuEventRecord", (void *event, void *stream)) \
	F(event_query, "cuEventQuery", (void *event)) \
	F(event_elapsed, "cuEventElapsedTime", (float *ms, void *from, void *to)) \
	F(ipc_get, "cuIpcGetMemHandle", (struct cu_ipc *out, cu_ptr base)) \
	F(ipc_open, "cuIpcOpenMemHandle_v2", (cu_ptr *out, struct cu_ipc handle, unsigned flags)) \
	F(ipc_close, "cuIpcCloseMemHandle", (cu_ptr addr)) \
	F(ipc_event_get, "cuIpcGetEventHandle", (struct cu_ipc *out, void *event)) \
	F(ipc_event_open, "cuIpcOpenEventHandle", (void **out, struct cu_ipc handle)) \
	F(pointer, "cuPointerGetAttribute", (void *out, int attribute, cu_ptr addr)) \
	F(module_load, "cuModuleLoadData", (void **out, const void *image)) \
	F(module_unload, "cuModuleUnload", (void *module)) \
	F(module_function, "cuModuleGetFunction", (void **out, void *module, const char *name)) \
	F(launch, "cuLaunchKernel", (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, \
		void *stream, void **params, void **extra))

struct ist__cuda_api {
#define F(member, name, args) int (*member) args;
	IST__CUDA_CALLS(F)
#undef F
	int (*device_uuid)(void *out, int device); /* cuDeviceGetUuid_v2, or what there was before it */
	char library[256];
};

enum ist__cuda_load { IST__CUDA_LOADED, IST__CUDA_NONE, IST__CUDA_OLD };

/* The copy that is in this process already; or, if it may load, the system's. text: what is missing, where it is not LOADED.
 * Never unloaded. */
enum ist__cuda_load ist__cuda_load(struct ist__cuda_api *api, int may_load, char *text, size_t room);

#endif
