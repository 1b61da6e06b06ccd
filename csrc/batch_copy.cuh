// Entries of copies by the copy engines, for SGLang's load_jit: no SM takes part. The arguments are plain
// addresses (sglang_hisparse/kernels/engines.py). Both return whether the driver took all copies as one
// batch; else they were issued one by one: runtimes before CUDA 13, the legacy default stream and captures
// know no batches.
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/utils.h>

#include <sgl_kernel/utils.cuh>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace hisparse {

constexpr size_t kMostRects = 4096;  // of one call of the driver

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

// Columns begin .. end - 1 of `copies`: addresses in the host pool, addresses in the staging, sizes.
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
    const auto staging = reinterpret_cast<void**>(first + columns);
    const auto bytes = reinterpret_cast<size_t*>(first + 2 * columns);
    const auto to = to_host ? host : staging;
    const auto from = const_cast<const void**>(to_host ? staging : host);
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

// Rows of `width` bytes, `pitch` bytes from one to the next.
struct Rect {
  int64_t target, source, target_pitch, source_pitch, width, height;
};
static_assert(sizeof(Rect) == 6 * sizeof(int64_t));

struct BatchRects {
  static bool run(tvm::ffi::TensorView rects, int64_t stream_handle) {
    using namespace sglang::host;
    auto n = SymbolicSize{"rectangles"};
    TensorMatcher({n, 6}).with_dtype<int64_t>().with_device<kDLCPU>().verify(rects);
    const auto first = static_cast<const Rect*>(rects.data_ptr());
    const auto stream = reinterpret_cast<cudaStream_t>(stream_handle);
    const size_t count = size_t(n.unwrap());
    if (count == 0) return true;
    bool batched = takes_batches(stream);
    for (size_t begin = 0; begin < count; begin += kMostRects) {
      const size_t end = std::min(count, begin + kMostRects);
      batched = batched && batch(first + begin, end - begin, stream);
      if (!batched) one_by_one(first + begin, end - begin, stream);
    }
    return batched;
  }

 private:
  static bool batch(const Rect* rects, size_t count, cudaStream_t stream) {
#if CUDART_VERSION >= 13000
    std::vector<cudaMemcpy3DBatchOp> copies(count);  // all zero
    for (size_t i = 0; i < count; i++) {
      const Rect& rect = rects[i];
      cudaMemcpy3DBatchOp& copy = copies[i];
      copy.src = operand(rect.source, rect.source_pitch);
      copy.dst = operand(rect.target, rect.target_pitch);
      copy.extent = {size_t(rect.width), size_t(rect.height), 1};
      copy.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
      copy.flags = cudaMemcpyFlagPreferOverlapWithCompute;
    }
    return was_taken(cudaMemcpy3DBatchAsync(count, copies.data(), 0, stream));
#else
    return false;
#endif
  }

#if CUDART_VERSION >= 13000
  static cudaMemcpy3DOperand operand(int64_t address, int64_t pitch) {
    cudaMemcpy3DOperand result{};
    result.type = cudaMemcpyOperandTypePointer;
    result.op.ptr.ptr = reinterpret_cast<void*>(address);
    result.op.ptr.rowLength = size_t(pitch);
    return result;
  }
#endif

  static void one_by_one(const Rect* rects, size_t count, cudaStream_t stream) {
    for (const Rect* rect = rects; rect != rects + count; rect++) {
      CHECK_CUDA(cudaMemcpy2DAsync(reinterpret_cast<void*>(rect->target), size_t(rect->target_pitch),
                                   reinterpret_cast<const void*>(rect->source), size_t(rect->source_pitch),
                                   size_t(rect->width), size_t(rect->height), cudaMemcpyDefault, stream));
    }
  }
};

}  // namespace hisparse
