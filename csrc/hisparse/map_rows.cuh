// Look-ups in the page map, with the results of map_rows and map_pages in
// sglang_hisparse/kernels/reference.py.
#pragma once

#include <cstdint>

namespace hisparse {

constexpr int kMapThreads = 256;

// Slots -> device rows: slot = page * 64 + offset becomes page_map[page] * 64 + offset. Below 0: as it is. Of
// a page that is not in HBM: something below 0. Outside the map: -1.
template <typename Slot>
__global__ void map_rows_kernel(const int32_t* __restrict__ page_map, int64_t pages,
                                const Slot* __restrict__ slots, Slot* __restrict__ rows, int64_t count) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= count) return;
  const Slot slot = slots[at], page = slot >> 6;
  Slot row = slot;
  if (slot >= 0) row = page < pages ? Slot(page_map[page]) * 64 + (slot & 63) : Slot(-1);
  rows[at] = row;
}

// Logical pages -> device pages; 0, the padding page, for what is not in HBM or outside the map.
__global__ void map_pages_kernel(const int32_t* __restrict__ page_map, int64_t pages,
                                 const int32_t* __restrict__ table, int32_t* __restrict__ mapped,
                                 int64_t count) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= count) return;
  const int32_t page = table[at];
  mapped[at] = page >= 0 && page < pages ? max(page_map[page], 0) : 0;
}

}  // namespace hisparse
