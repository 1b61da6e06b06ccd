// Entry of copies by the copy engines, for SGLang's load_jit: no SM takes part. The arguments are plain
// addresses (sglang_hisparse/kernels/pages.py). Returns whether the driver took all copies as one batch; else
// they were issued one by one: runtimes before CUDA 13, the legacy default stream and captures know no
// batches.
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/utils.h>

#include <sgl_kernel/utils.cuh>

#include <cstdint>

namespace hisparse {

inline bool takes_batches(cudaStream_t stream) {
#if CUDART_VERSION >= 13000
  if (stream == nullptr || stream == cudaStreamLegacy) return false;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CHECK_CUDA(cudaStreamIsCapturing(stream, &status));
  return status == cudaStreamCaptureStatusNone;
#else
  return false;
#endif
}

// Whether a batch was taken: an older driver under a new runtime may not know it.
inline bool was_taken(cudaError_t error) {
  if (error == cudaErrorNotSupported || error == cudaErrorCallRequiresNewerDriver) {
    (void)cudaGetLastError();
    return false;
  }
  CHECK_CUDA(error);
  return true;
}

// Columns begin .. end - 1 of `copies`: addresses on the host, addresses in HBM, sizes.
struct BatchCopy {
  static bool run(tvm::ffi::TensorView copies, int64_t begin, int64_t end, bool to_host,
                  int64_t stream_handle) {
    using namespace sglang::host;
    auto n = SymbolicSize{"copies"};
    TensorMatcher({3, n}).with_dtype<int64_t>().with_device<kDLCPU>().verify(copies);
    const int64_t columns = n.unwrap();
    CHECK_HOST(0 <= begin && begin <= end && end <= columns)
        << "copies " << begin << " to " << end << " of " << columns;
    const size_t count = size_t(end - begin);
    const auto stream = reinterpret_cast<cudaStream_t>(stream_handle);
    static_assert(sizeof(void*) == sizeof(int64_t) && sizeof(size_t) == sizeof(int64_t));
    const auto first = static_cast<int64_t*>(copies.data_ptr()) + begin;
    const auto host = reinterpret_cast<void**>(first);
    const auto device = reinterpret_cast<void**>(first + columns);
    const auto bytes = reinterpret_cast<size_t*>(first + 2 * columns);
    const auto to = to_host ? host : device;
    const auto from = const_cast<const void**>(to_host ? device : host);
    if (count == 0) return true;
#if CUDART_VERSION >= 13000
    if (takes_batches(stream)) {
      cudaMemcpyAttributes attributes{};
      attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
      attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
      size_t first = 0;
      if (was_taken(cudaMemcpyBatchAsync(to, from, bytes, count, &attributes, &first, 1, stream)))
        return true;
    }
#endif
    for (size_t i = 0; i < count; i++) {
      CHECK_CUDA(cudaMemcpyAsync(to[i], from[i], bytes[i], cudaMemcpyDefault, stream));
    }
    return false;
  }
};

}  // namespace hisparse
