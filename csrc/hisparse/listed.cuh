// Fetch of rows that resolve listed: of the layers that follow a leader, on a side stream under the compute
// in between; and of the leader where many requests miss.
//
// A warp takes two rows of the list at once. Requests are swept one after another, in the order of the list:
// host pages of one request lie close together, and what a short read costs is mostly the first touch of the
// host memory around it (docs/kernels.md).
//
// Few blocks that are full, in clusters of two (neighbouring SMs): compute beside them loses every SM that a
// block is on. No shared memory.
#pragma once

#include <cstdint>

#include "block.cuh"
#include "gather.cuh"

namespace hisparse {

constexpr int kMaxListedThreads = 1024;
constexpr int kRowsAtOnce = 2;
constexpr int kRowLoads = 2;  // of a lane at once, for each row: 1 KiB of it

struct ListedParams {
  const int2* miss_rows;      // [batch, miss_stride] host row, device row
  const int32_t* miss_count;  // [batch]
  int32_t miss_stride;
  int32_t batch;
  PlaneTable planes;  // to fetch
};

// The list of all requests as one, for one warp that walks it in ascending order.
class ListWalk {
 public:
  __device__ explicit ListWalk(const ListedParams& p) : p_(p) { load_counts(); }

  // Row n of the list, or -1, -1 behind its end. No n may be lower than the one before. Whole warps.
  __device__ int2 at(int n) {
    while (request_ < p_.batch) {
      const int here = __shfl_sync(~0u, counts_, request_ % 32);
      if (n - before_ < here) return p_.miss_rows[int64_t(request_) * p_.miss_stride + n - before_];
      before_ += here;
      if (++request_ % 32 == 0) load_counts();
    }
    return {-1, -1};
  }

 private:
  __device__ void load_counts() {
    const int mine = request_ + int(threadIdx.x % 32);
    counts_ = mine < p_.batch ? p_.miss_count[mine] : 0;
  }

  const ListedParams& p_;
  int request_ = 0, before_ = 0;  // rows of requests below `request_`
  int counts_;                    // of 32 requests, a lane each
};

__global__ __launch_bounds__(kMaxListedThreads) void listed_kernel(const __grid_constant__ ListedParams p) {
  wait_for_earlier_kernels();
  const int lane = threadIdx.x % 32, step = gridDim.x * blockDim.x / 32 * kRowsAtOnce;
  int n = (blockIdx.x * blockDim.x + threadIdx.x) / 32 * kRowsAtOnce;
  ListWalk list(p);
  int2 row[kRowsAtOnce], next[kRowsAtOnce];
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; r++) next[r] = list.at(n + r);

  while (next[0].x >= 0) {
    n += step;
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; r++) row[r] = next[r];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; r++) next[r] = list.at(n + r);
    for (int first = lane; first < p.planes.chunks; first += 32 * kRowLoads) {
      int4 chunk[kRowsAtOnce][kRowLoads];
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; r++) {
#pragma unroll
        for (int k = 0; k < kRowLoads; k++) {
          const int at = first + 32 * k;
          if (at >= p.planes.chunks || row[r].x < 0) continue;
          chunk[r][k] = load_chunk(p.planes.on_host(row[r].x, at));
        }
      }
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; r++) {
#pragma unroll
        for (int k = 0; k < kRowLoads; k++) {
          const int at = first + 32 * k;
          if (at >= p.planes.chunks || row[r].x < 0) continue;
          store_chunk(p.planes.on_device(row[r].y, at), chunk[r][k]);
        }
      }
    }
  }
}

}  // namespace hisparse
