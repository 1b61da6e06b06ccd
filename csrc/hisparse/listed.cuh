// Fetch of rows that resolve listed: of the layers that follow a leader, on a side stream under the compute
// in between; and of the leader where many requests miss.
//
// Requests are swept one after another. A GPU keeps translations of about 1.5 GiB of host memory, in pieces
// of 2 MiB, and reads short rows at two thirds of the link's speed beyond that; a request's host pages lie
// close together, those of all requests do not.
#pragma once

#include <cstdint>

#include "block.cuh"
#include "gather.cuh"

namespace hisparse {

constexpr int kMaxBatch = 4096;

struct ListedParams {
  const int2* miss_rows;      // [batch, miss_stride] host row, device row
  const int32_t* miss_count;  // [batch]
  int32_t miss_stride;
  int32_t batch;
  int64_t host_row_bytes;
  PlaneTable planes;  // to fetch
};

struct ListedRows {
  const int2* rows;
  __device__ int host_row(int n) const { return rows[n].x; }
  __device__ int device_row(int n) const { return rows[n].y; }
};

// All requests' rows are one range that all threads of the grid share: a request's first chunk goes to the
// thread behind the one that took the last chunk of the request before.
__global__ __launch_bounds__(kThreads, 1) void listed_kernel(const __grid_constant__ ListedParams p) {
  __shared__ int32_t counts[kMaxBatch];
  wait_for_earlier_kernels();
  for (int b = threadIdx.x; b < p.batch; b += kThreads) counts[b] = p.miss_count[b];
  __syncthreads();
  const int step = kThreads * gridDim.x;
  int at = blockIdx.x * kThreads + threadIdx.x;  // of the thread in the next request
  for (int b = 0; b < p.batch; b++) {
    const int total = counts[b] * p.planes.chunks;
    const ListedRows rows{p.miss_rows + int64_t(b) * p.miss_stride};
    const Gather<ListedRows> gather{p.planes, rows, p.host_row_bytes, p.planes.chunks, total, step};
    gather.run(at);
    at = (at - total) % step;
    if (at < 0) at += step;
  }
}

}  // namespace hisparse
