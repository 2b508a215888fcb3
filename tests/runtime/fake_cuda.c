/* A stand-in for the CUDA driver: it loads nothing and writes down what a launch was given. */

#include "cuda.h"
#include <stdint.h>
#include <string.h>

#undef cuDevicePrimaryCtxRetain
#undef cuLaunchKernelEx

struct {
  uint32_t grid[3], block, shared;
  uint64_t stream, function, launches;
  uint64_t count, sizes[64], values[64]; /* count and sizes are set by the test */
} record;

CUresult cuCtxGetCurrent(CUcontext *context) { return *context = (CUcontext)1, 0; }
CUresult cuCtxSetCurrent(CUcontext context) { return 0; }
CUresult cuCtxGetDevice(CUdevice *device) { return *device = 0, 0; }
CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { return *value = 0, 0; }
CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return 0; }
CUresult cuDeviceGet(CUdevice *device, int index) { return *device = index, 0; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute what, CUdevice device) {
  return *value = 232448, 0;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  return *context = (CUcontext)1, 0;
}
CUresult cuDriverGetVersion(int *value) { return *value = 13000, 0; }
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute what, CUfunction function) {
  return *value = what == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 256 : 32, 0;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute what, int value) { return 0; }
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return 0; }
CUresult cuGetErrorString(CUresult code, const char **text) { return *text = "fake error", 0; }
CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  return *module = (CUmodule)2, 0;
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  return *function = (CUfunction)3, 0;
}
CUresult cuModuleUnload(CUmodule module) { return 0; }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  return *status = CU_STREAM_CAPTURE_STATUS_NONE, 0;
}
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute what, CUdeviceptr pointer) {
  return *(CUdeviceptr *)value = pointer, 0;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params,
                          void **extra) {
  record.grid[0] = config->gridDimX;
  record.grid[1] = config->gridDimY;
  record.grid[2] = config->gridDimZ;
  record.block = config->blockDimX;
  record.shared = config->sharedMemBytes;
  record.stream = (uint64_t)config->hStream;
  record.function = (uint64_t)function;
  record.launches++;
  for (uint64_t i = 0; i < record.count; i++) {
    record.values[i] = 0;
    memcpy(&record.values[i], params[i], record.sizes[i]);
  }
  return 0;
}
