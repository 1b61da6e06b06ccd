// Page copy: whole pages between the KV buffers (plane by plane) and the group-contiguous host rows. On the
// device the 64 rows of a page are contiguous in every plane; on the host a page of a group is one contiguous
// piece.
#pragma once

#include <cstdint>

#include "gather.cuh"
#include "layout.cuh"

namespace hisparse {

constexpr int kMostCopyThreads = 1024;

struct CopyParams {
  const GroupPlane* planes;  // of all groups
  const GroupRange* groups;  // [group_count]
  const void* pairs;         // [pairs, 2] device page, host page; skipped where one is negative
  uint32_t group_count;
  uint32_t work;    // pairs * group_count
  bool wide_pages;  // page ids are int64
};

struct PageRows {
  int host, device;  // first rows
  __device__ int host_row(int n) const { return host + n; }
  __device__ int device_row(int n) const { return device + n; }
};

// One block copies one page of one group at a time; its warps do not wait for each other.
template <bool kToHost>
__global__ __launch_bounds__(kMostCopyThreads,
                             1) void copy_pages_kernel(const __grid_constant__ CopyParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  PlaneTable* tables = reinterpret_cast<PlaneTable*>(memory);  // [group_count]
  for (uint32_t g = threadIdx.x; g < p.group_count; g += blockDim.x) {
    const GroupRange range = p.groups[g];
    tables[g].fill(p.planes, int(range.first_plane), int(range.plane_count), range.host);
  }
  __syncthreads();
  for (uint32_t work = blockIdx.x; work < p.work; work += gridDim.x) {
    const uint32_t pair = work / p.group_count, group = work - pair * p.group_count;
    const int64_t device = p.wide_pages ? static_cast<const int64_t*>(p.pairs)[2 * pair]
                                        : static_cast<const int32_t*>(p.pairs)[2 * pair];
    const int64_t host = p.wide_pages ? static_cast<const int64_t*>(p.pairs)[2 * pair + 1]
                                      : static_cast<const int32_t*>(p.pairs)[2 * pair + 1];
    if (device < 0 || host < 0) continue;
    const PlaneTable& planes = tables[group];
    const PageRows rows{int(host * kPage), int(device * kPage)};
    const Gather<PageRows, kToHost> copy{
        planes, rows, p.groups[group].host_row_bytes, planes.chunks, kPage * planes.chunks, int(blockDim.x)};
    copy.run(int(threadIdx.x));
  }
}

}  // namespace hisparse
