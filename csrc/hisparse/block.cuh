// Counting across one thread block.
#pragma once

#include <cstdint>

namespace hisparse {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
static_assert(kWarps == 32, "one warp combines the results of all warps, a lane each");

struct ScanStorage {
  uint32_t warp[2][kWarps];
};

// Sum of `value` over the block, in every thread. Two barriers; writes made before it are visible after it.
__device__ __forceinline__ int block_sum(int value, ScanStorage& storage) {
  value = __reduce_add_sync(~0u, value);
  if (threadIdx.x % 32 == 0) storage.warp[0][threadIdx.x / 32] = value;
  __syncthreads();
  const int sum = __reduce_add_sync(~0u, storage.warp[0][threadIdx.x % 32]);
  __syncthreads();
  return sum;
}

// Smallest and largest `value` over the block, in every thread. Two barriers.
struct Range {
  uint32_t low, high;
};
__device__ __forceinline__ Range block_range(Range value, ScanStorage& storage) {
  const uint32_t low = __reduce_min_sync(~0u, value.low), high = __reduce_max_sync(~0u, value.high);
  if (threadIdx.x % 32 == 0) {
    storage.warp[0][threadIdx.x / 32] = low;
    storage.warp[1][threadIdx.x / 32] = high;
  }
  __syncthreads();
  const Range range{__reduce_min_sync(~0u, storage.warp[0][threadIdx.x % 32]),
                    __reduce_max_sync(~0u, storage.warp[1][threadIdx.x % 32])};
  __syncthreads();
  return range;
}

// How many threads with a smaller threadIdx.x, and how many in all, have flag a (and flag b) set. Two
// barriers.
struct Rank {
  int before_a, total_a, before_b, total_b;
};
__device__ __forceinline__ Rank block_rank(bool a, bool b, ScanStorage& storage) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t below = (1u << lane) - 1;
  const uint32_t in_a = __ballot_sync(~0u, a), in_b = __ballot_sync(~0u, b);
  // Both counts of a warp in one word: at most 1,024 each over the block.
  if (lane == 0) storage.warp[0][warp] = __popc(in_a) | __popc(in_b) << 16;
  __syncthreads();
  const uint32_t counts = storage.warp[0][lane];
  const uint32_t before = __reduce_add_sync(~0u, lane < warp ? counts : 0);
  const uint32_t total = __reduce_add_sync(~0u, counts);
  __syncthreads();
  return {int(before & 0xffff) + __popc(in_a & below), int(total & 0xffff),
          int(before >> 16) + __popc(in_b & below), int(total >> 16)};
}

}  // namespace hisparse
