// Page copy: whole pages between the KV buffers (plane by plane) and host rows. On the device the 64 rows of
// a page are contiguous in every plane; on the host a page of a row group is one contiguous piece.
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
  uint32_t work;    // pairs * group_count * slices
  uint32_t slices;  // of a page, kPage / slices rows each
  bool wide_pages;  // page ids are int64
};

struct PageRows {
  int host, device;  // first rows
  __device__ int host_row(int n) const { return host + n; }
  __device__ int device_row(int n) const { return device + n; }
};

// Plane p of `table`, as PlaneTable::fill does it, with all loads in flight at once: in a short kernel a
// chain of them is most of the time.
__device__ __forceinline__ void fill_plane(PlaneTable& table, const GroupPlane* planes,
                                           const GroupRange& range, int p) {
  const int count = int(range.plane_count);
  int before = 0, all = 0;
#pragma unroll
  for (int i = 0; i < kMaxPlanes; i++) {
    const int chunks = i < count ? int(planes[range.first_plane + i].row_bytes / kChunk) : 0;
    if (i < p) before += chunks;
    all += chunks;
  }
  const GroupPlane plane = p < count ? planes[range.first_plane + p] : GroupPlane{};
  const int own = int(plane.row_bytes / kChunk);
  table.device[p] = plane.device - int64_t(before) * kChunk;
  table.host[p] = range.host + plane.host_offset - int64_t(before) * kChunk;
  table.row_bytes[p] = int(plane.row_bytes);
  table.end[p] = before + own;
  if (p == 0) table.chunks = all;
}

// One block copies one slice of one page of one group at a time; its warps do not wait for each other.
template <bool kToHost>
__global__ __launch_bounds__(kMostCopyThreads) void copy_pages_kernel(const __grid_constant__ CopyParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  PlaneTable* tables = reinterpret_cast<PlaneTable*>(memory);  // [group_count]
  for (uint32_t i = threadIdx.x; i < p.group_count * kMaxPlanes; i += blockDim.x) {
    const uint32_t g = i / kMaxPlanes;
    fill_plane(tables[g], p.planes, p.groups[g], int(i % kMaxPlanes));
  }
  __syncthreads();
  const int rows_of_slice = kPage / int(p.slices);
  for (uint32_t work = blockIdx.x; work < p.work; work += gridDim.x) {
    const uint32_t whole = work / p.slices, first = (work - whole * p.slices) * rows_of_slice;
    const uint32_t pair = whole / p.group_count, group = whole - pair * p.group_count;
    const int64_t device = p.wide_pages ? static_cast<const int64_t*>(p.pairs)[2 * pair]
                                        : static_cast<const int32_t*>(p.pairs)[2 * pair];
    const int64_t host = p.wide_pages ? static_cast<const int64_t*>(p.pairs)[2 * pair + 1]
                                      : static_cast<const int32_t*>(p.pairs)[2 * pair + 1];
    if (device < 0 || host < 0) continue;
    const PlaneTable& planes = tables[group];
    const PageRows rows{int(host * kPage + first), int(device * kPage + first)};
    const Gather<PageRows, kToHost> copy{
        planes,         rows, p.groups[group].host_row_bytes, planes.chunks, rows_of_slice * planes.chunks,
        int(blockDim.x)};
    copy.run(int(threadIdx.x));
  }
}

}  // namespace hisparse
