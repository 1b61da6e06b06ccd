// Fetch of rows that resolve listed: of the layers that follow a leader, on a side stream under the compute
// in between; and of the leader where many requests miss.
//
// A warp takes as many rows of the list at once as its lanes can load in one go, as one range of 16-byte
// chunks. Requests are swept one after another, in the order of the list: host pages of one request lie close
// together, and what a short read costs is mostly the first touch of the host memory around it
// (docs/kernels.md).
//
// Few blocks that are full, in clusters of two (neighbouring SMs): compute beside them loses every SM that a
// block is on. No shared memory.
#pragma once

#include <cstdint>

#include "block.cuh"
#include "gather.cuh"

namespace hisparse {

constexpr int kMaxListedThreads = 1024;
constexpr int kRowLoads = 5;        // of a lane at once: 3 rows of 656 B, 2 of 1,152 B
constexpr int kMostRowsAtOnce = 8;  // of a warp

struct ListedParams {
  const int2* miss_rows;      // [batch, miss_stride] host row, device row
  const int32_t* miss_count;  // [batch]
  int32_t miss_stride;
  int32_t batch;
  PlaneTable planes;  // to fetch
  int32_t rows_at_once;
  uint32_t row_magic;  // chunk i of the range is of row i * row_magic >> 16

  // Of `planes.chunks`. Exact for every i < 256: then i < 65536 / chunks, where several rows are taken, and
  // row_magic is too large by less than chunks / 65536.
  void set_rows() {
    const int fit = planes.chunks > 0 ? 32 * kRowLoads / planes.chunks : 1;
    rows_at_once = fit < 1 ? 1 : fit > kMostRowsAtOnce ? kMostRowsAtOnce : fit;
    row_magic = rows_at_once == 1 ? 0 : 65536u / uint32_t(planes.chunks) + 1;
  }
};

// The list of all requests as one, for one warp that walks it in ascending order.
class ListWalk {
 public:
  __device__ explicit ListWalk(const ListedParams& p) : p_(p) { load_counts(); }

  // Rows n, n + 1, ... of the list for lanes 0, 1, ... below `rows`; -1, -1 for other lanes and behind its
  // end. No n may be lower than the end of the call before. Whole warps.
  __device__ int2 at(int n, int rows) {
    int2 mine{-1, -1};
    for (int r = 0; r < rows; r++) {
      const int2 row = one(n + r);
      if (threadIdx.x % 32 == r) mine = row;
    }
    return mine;
  }

 private:
  __device__ int2 one(int n) {
    while (request_ < p_.batch) {
      const int here = __shfl_sync(~0u, counts_, request_ % 32);
      if (n - before_ < here) return p_.miss_rows[int64_t(request_) * p_.miss_stride + n - before_];
      before_ += here;
      if (++request_ % 32 == 0) load_counts();
    }
    return {-1, -1};
  }
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
  const int lane = threadIdx.x % 32, rows = p.rows_at_once, chunks = p.planes.chunks, total = rows * chunks;
  const int step = gridDim.x * blockDim.x / 32 * rows;
  int n = (blockIdx.x * blockDim.x + threadIdx.x) / 32 * rows;
  ListWalk list(p);
  int2 next = list.at(n, rows);

  while (__any_sync(~0u, next.x >= 0)) {
    const int2 mine = next;
    n += step;
    next = list.at(n, rows);
    for (int base = 0; base < total; base += 32 * kRowLoads) {
      int4 chunk[kRowLoads];
#pragma unroll
      for (int k = 0; k < kRowLoads; k++) {
        const int at = base + 32 * k + lane, row = int(uint32_t(at) * p.row_magic >> 16);
        const int host_row = __shfl_sync(~0u, mine.x, row);
        if (at < total && host_row >= 0) chunk[k] = load_chunk(p.planes.on_host(host_row, at - row * chunks));
      }
#pragma unroll
      for (int k = 0; k < kRowLoads; k++) {
        const int at = base + 32 * k + lane, row = int(uint32_t(at) * p.row_magic >> 16);
        const int host_row = __shfl_sync(~0u, mine.x, row), device_row = __shfl_sync(~0u, mine.y, row);
        if (at < total && host_row >= 0)
          store_chunk(p.planes.on_device(device_row, at - row * chunks), chunk[k]);
      }
    }
  }
}

}  // namespace hisparse
