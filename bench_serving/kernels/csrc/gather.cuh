// The ceiling that resolve is compared to: a gather of host rows that does nothing else. Source and target
// row of every row are in device memory; all threads share one flat range of 16-byte chunks, kDepth reads of
// each in flight. Arguments: bench_serving/kernels/gather.py.
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/utils.h>

#include <sgl_kernel/utils.cuh>

#include <cstdint>

namespace hisparse_bench {

constexpr int kChunk = 16;  // bytes of one access
constexpr int kDepth = 4;
constexpr int kThreads = 1024;

struct GatherParams {
  const uint8_t* host;
  uint8_t* device;
  const int32_t* source;  // [rows] host row
  const int32_t* target;  // [rows] device row
  int64_t row_bytes;
  int32_t chunks;  // of a row
  int32_t total;   // of all rows
};

__device__ __forceinline__ int4 read_once(const void* address) {
  int4 chunk;
  asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(chunk.x), "=r"(chunk.y), "=r"(chunk.z), "=r"(chunk.w)
               : "l"(address));
  return chunk;
}

__global__ __launch_bounds__(kThreads, 1) void gather_kernel(const __grid_constant__ GatherParams p) {
  const int step = int(gridDim.x) * kThreads;
  for (int at = int(blockIdx.x) * kThreads + int(threadIdx.x); at < p.total; at += step * kDepth) {
    int4 chunk[kDepth];
#pragma unroll
    for (int k = 0; k < kDepth; k++) {
      const int i = at + k * step;
      if (i >= p.total) break;
      const int row = i / p.chunks;
      chunk[k] = read_once(p.host + p.source[row] * p.row_bytes + (i - row * p.chunks) * kChunk);
    }
#pragma unroll
    for (int k = 0; k < kDepth; k++) {
      const int i = at + k * step;
      if (i >= p.total) break;
      const int row = i / p.chunks;
      uint8_t* target = p.device + p.target[row] * p.row_bytes + (i - row * p.chunks) * kChunk;
      *reinterpret_cast<int4*>(target) = chunk[k];
    }
  }
}

__global__ void empty_kernel() {}

struct Gather {
  static void run(int64_t host, tvm::ffi::TensorView device_rows, tvm::ffi::TensorView source,
                  tvm::ffi::TensorView target, int64_t blocks) {
    using namespace sglang::host;
    auto rows = SymbolicSize{"rows"}, device_row_count = SymbolicSize{"device rows"};
    auto row_bytes = SymbolicSize{"row bytes"};
    auto device = SymbolicDevice{};
    TensorMatcher({device_row_count, row_bytes})
        .with_dtype<uint8_t>()
        .with_device<kDLCUDA>(device)
        .verify(device_rows);
    TensorMatcher({rows}).with_dtype<int32_t>().with_device<kDLCUDA>(device).verify(source).verify(target);
    const int64_t chunks = row_bytes.unwrap() / kChunk, total = rows.unwrap() * chunks;
    CHECK_HOST(row_bytes.unwrap() % kChunk == 0) << "rows of " << row_bytes.unwrap() << " bytes";
    // The last round of a thread may step past the end by one round of the grid.
    CHECK_HOST(total > 0 && total <= INT32_MAX / 2) << total << " chunks are more than one launch can gather";
    const GatherParams params{
        .host = reinterpret_cast<const uint8_t*>(host),
        .device = static_cast<uint8_t*>(device_rows.data_ptr()),
        .source = static_cast<const int32_t*>(source.data_ptr()),
        .target = static_cast<const int32_t*>(target.data_ptr()),
        .row_bytes = row_bytes.unwrap(),
        .chunks = static_cast<int32_t>(chunks),
        .total = static_cast<int32_t>(total),
    };
    LaunchKernel(static_cast<uint32_t>(blocks), kThreads, device.unwrap())(gather_kernel, params);
  }
};

struct Empty {
  static void run(tvm::ffi::TensorView anything) {
    sglang::host::LaunchKernel(1, 32, anything.device())(empty_kernel);
  }
};

}  // namespace hisparse_bench
