// Changes of the tables between two forwards, with the results of set_entries and set_lease in
// sglang_hisparse/kernels/reference.py. What is set travels in the parameters, which a launch copies: nothing
// is uploaded, and no host memory has to stay as it is until the kernel runs.
#pragma once

#include <cstdint>

namespace hisparse {

constexpr int kSetThreads = 256;
constexpr int kMostEntries = 480;     // of one launch: parameters of 4 KB at most
constexpr int kMostLeasePages = 512;  // 32,768 hot rows

// table[at[i]] = value[i]: the first `pages` entries of the page map, the others of hot_index.
struct EntryParams {
  int32_t *page_map, *hot_index;
  int32_t pages, count;
  int32_t at[kMostEntries], value[kMostEntries];
};
static_assert(sizeof(EntryParams) <= 4096);

__global__ void set_entries_kernel(const __grid_constant__ EntryParams params) {
  for (int i = threadIdx.x; i < params.count; i += blockDim.x) {
    (i < params.pages ? params.page_map : params.hot_index)[params.at[i]] = params.value[i];
  }
}

// One hot table's device pages; what its entries from `first` on cache is forgotten. Pointers are those of
// the table in group 0, `slot_stride` and `clock_stride` lead to the next group.
struct LeaseParams {
  int32_t *hot_rows, *hot_len, *hot_slot, *hot_stamp, *clock;
  int64_t slot_stride, clock_stride;
  int32_t hot_rows_most, first, pages;
  int32_t page[kMostLeasePages];
};
static_assert(sizeof(LeaseParams) <= 4096);

// Blocks: x over the rows of a table, y over the groups.
__global__ void set_lease_kernel(const __grid_constant__ LeaseParams params) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x, group = blockIdx.y;
  if (row >= params.hot_rows_most) return;
  if (group == 0 && row < params.pages * 64) params.hot_rows[row] = params.page[row / 64] * 64 + row % 64;
  if (group == 0 && row == 0) *params.hot_len = params.pages * 64;
  if (params.first == 0 && row == 0) params.clock[group * params.clock_stride] = 0;
  if (row >= params.first) {
    params.hot_slot[group * params.slot_stride + row] = -1;
    params.hot_stamp[group * params.slot_stride + row] = 0;
  }
}

}  // namespace hisparse
