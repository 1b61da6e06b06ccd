// Page copy: whole pages between the KV buffers (plane by plane) and the group-contiguous host rows. On the
// device the 64 rows of a page are contiguous in every plane; on the host they are host_row_bytes apart.
#pragma once

#include <cstdint>

#include "layout.cuh"

namespace hisparse {

constexpr int kCopyThreads = 512;
constexpr int kCopyDepth = 4;  // chunks a thread has in flight

struct CopyParams {
  const CopyPlane* planes;  // [plane_count], all groups
  const void* pairs;        // [pair_count, 2] device page, host page; skipped where one is negative
  uint32_t plane_count;
  uint32_t work;  // pair_count * plane_count
  bool to_host;
};

// One block copies one plane of one page at a time.
template <typename Page>
__global__ __launch_bounds__(kCopyThreads) void copy_pages_kernel(const __grid_constant__ CopyParams p) {
  for (uint32_t work = blockIdx.x; work < p.work; work += gridDim.x) {
    const Page* pair = static_cast<const Page*>(p.pairs) + int64_t(work / p.plane_count) * 2;
    if (pair[0] < 0 || pair[1] < 0) continue;
    const CopyPlane plane = p.planes[work % p.plane_count];
    const int64_t device_row = int64_t(pair[0]) * kPage, host_row = int64_t(pair[1]) * kPage;
    uint8_t* device = reinterpret_cast<uint8_t*>(plane.device) + device_row * plane.row_bytes;
    uint8_t* host = reinterpret_cast<uint8_t*>(plane.host) + host_row * plane.host_row_bytes;
    const int row_chunks = int(plane.row_bytes / kChunk);
    const int page_chunks = row_chunks * kPage;
    const auto on_device = [&](int at) { return device + int64_t(at) * kChunk; };
    const auto on_host = [&](int at) {
      const int row = at / row_chunks;
      return host + row * plane.host_row_bytes + int64_t(at - row * row_chunks) * kChunk;
    };

    for (int base = threadIdx.x; base < page_chunks; base += kCopyThreads * kCopyDepth) {
      int4 chunk[kCopyDepth];
#pragma unroll
      for (int k = 0; k < kCopyDepth; k++) {
        const int at = base + k * kCopyThreads;
        if (at < page_chunks) chunk[k] = load_chunk(p.to_host ? on_device(at) : on_host(at));
      }
#pragma unroll
      for (int k = 0; k < kCopyDepth; k++) {
        const int at = base + k * kCopyThreads;
        if (at < page_chunks) store_chunk(p.to_host ? on_host(at) : on_device(at), chunk[k]);
      }
    }
  }
}

}  // namespace hisparse
