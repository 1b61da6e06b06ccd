// Fetch of rows that resolve listed: of the layers that follow a leader, on a side stream under the compute
// in between; and of the leader where many requests miss.
//
// A warp takes a row. Requests are swept one after another, with few rows under way: short rows that span
// more than about 1.5 GiB of host memory come at little more than half of the link's speed (docs/kernels.md).
// The host pages of one request lie close together, those of all requests do not.
#pragma once

#include <cstdint>

#include "block.cuh"
#include "gather.cuh"

namespace hisparse {

constexpr int kMaxBatch = 4096;
constexpr int kListedThreads = 512;
constexpr int kRowLoads = 4;  // of a lane at once: 2 KiB of a row

struct ListedParams {
  const int2* miss_rows;      // [batch, miss_stride] host row, device row
  const int32_t* miss_count;  // [batch]
  int32_t miss_stride;
  int32_t batch;
  int64_t host_row_bytes;
  PlaneTable planes;  // to fetch
};

// end[b] = rows of requests 0 .. b. By one warp.
__device__ __forceinline__ void sum_up(const ListedParams& p, int32_t* end) {
  const int lane = threadIdx.x % 32;
  int32_t before = 0;
  for (int first = 0; first < p.batch; first += 32) {
    int32_t sum = first + lane < p.batch ? p.miss_count[first + lane] : 0;
    for (int step = 1; step < 32; step *= 2) {
      const int32_t lower = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += lower;
    }
    if (first + lane < p.batch) end[first + lane] = before + sum;
    before += __shfl_sync(~0u, sum, 31);
  }
}

__global__ __launch_bounds__(kListedThreads, 2) void listed_kernel(const __grid_constant__ ListedParams p) {
  __shared__ int32_t end[kMaxBatch];
  wait_for_earlier_kernels();
  if (threadIdx.x < 32) sum_up(p, end);
  __syncthreads();

  const int lane = threadIdx.x % 32, warps = gridDim.x * (kListedThreads / 32), total = end[p.batch - 1];
  int request = 0;
  const auto listed = [&](int n) {  // ascending n only
    while (n >= end[request]) request++;
    return p.miss_rows[int64_t(request) * p.miss_stride + n - (request > 0 ? end[request - 1] : 0)];
  };
  int n = (blockIdx.x * kListedThreads + threadIdx.x) / 32;
  int2 row = n < total ? listed(n) : int2{};
  while (n < total) {
    n += warps;
    const int2 next = n < total ? listed(n) : int2{};
    const int64_t host_row = int64_t(row.x) * p.host_row_bytes;
    for (int first = lane; first < p.planes.chunks; first += 32 * kRowLoads) {
      int4 chunk[kRowLoads];
#pragma unroll
      for (int k = 0; k < kRowLoads; k++) {
        const int at = first + 32 * k;
        if (at >= p.planes.chunks) break;
        const int plane = p.planes.plane_of(at);
        chunk[k] = load_chunk(reinterpret_cast<uint8_t*>(p.planes.host[plane] + host_row + at * kChunk));
      }
#pragma unroll
      for (int k = 0; k < kRowLoads; k++) {
        const int at = first + 32 * k;
        if (at >= p.planes.chunks) break;
        const int plane = p.planes.plane_of(at);
        store_chunk(reinterpret_cast<uint8_t*>(p.planes.device[plane] +
                                               int64_t(row.y) * p.planes.row_bytes[plane] + at * kChunk),
                    chunk[k]);
      }
    }
    row = next;
  }
}

}  // namespace hisparse
