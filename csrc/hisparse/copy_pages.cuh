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
  int64_t plane_count;
  int64_t pair_count;
};

// One block copies one plane of one page at a time.
template <bool kToHost, typename Page>
__global__ __launch_bounds__(kCopyThreads) void copy_pages_kernel(const __grid_constant__ CopyParams p) {
  for (int64_t work = blockIdx.x; work < p.pair_count * p.plane_count; work += gridDim.x) {
    const Page* pair = static_cast<const Page*>(p.pairs) + work / p.plane_count * 2;
    const int64_t device_page = pair[0], host_page = pair[1];
    if (device_page < 0 || host_page < 0) continue;
    const CopyPlane plane = p.planes[work % p.plane_count];
    uint8_t* device = reinterpret_cast<uint8_t*>(plane.device) + device_page * kPage * plane.row_bytes;
    uint8_t* host = reinterpret_cast<uint8_t*>(plane.host) + host_page * kPage * plane.host_row_bytes;
    const int row_chunks = int(plane.row_bytes / kChunk);
    const int page_chunks = row_chunks * kPage;

    for (int base = threadIdx.x; base < page_chunks; base += kCopyThreads * kCopyDepth) {
      int4 chunk[kCopyDepth];
#pragma unroll
      for (int k = 0; k < kCopyDepth; k++) {
        const int at = base + k * kCopyThreads, row = at / row_chunks;
        const int64_t on_host = row * plane.host_row_bytes + int64_t(at - row * row_chunks) * kChunk;
        if (at < page_chunks) chunk[k] = load_chunk(kToHost ? device + int64_t(at) * kChunk : host + on_host);
      }
#pragma unroll
      for (int k = 0; k < kCopyDepth; k++) {
        const int at = base + k * kCopyThreads, row = at / row_chunks;
        const int64_t on_host = row * plane.host_row_bytes + int64_t(at - row * row_chunks) * kChunk;
        if (at < page_chunks) store_chunk(kToHost ? host + on_host : device + int64_t(at) * kChunk, chunk[k]);
      }
    }
  }
}

}  // namespace hisparse
