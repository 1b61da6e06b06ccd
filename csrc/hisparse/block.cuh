// Counting across one thread block, and one barrier across a cluster of blocks.
#pragma once

#include <cstdint>

namespace hisparse {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
static_assert(kWarps == 32, "one warp combines the results of all warps, a lane each");

// Two counts of a thread in one word. A sum over the block must stay below 65,536 in each half.
struct Pair {
  int a, b;
};

// Sums of lower threads and of the whole block. One barrier; `warp` [kWarps] may be used again after another
// one.
struct Prefix {
  Pair before, total;
};
__device__ __forceinline__ Prefix block_prefix(Pair value, uint32_t* warp) {
  const int lane = threadIdx.x % 32, own = threadIdx.x / 32;
  const uint32_t packed = uint32_t(value.a) | uint32_t(value.b) << 16;
  uint32_t sum = packed;
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t lower = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += lower;
  }
  if (lane == 31) warp[own] = sum;
  __syncthreads();
  const uint32_t sums = warp[lane];
  const uint32_t before = __reduce_add_sync(~0u, lane < own ? sums : 0) + sum - packed;
  const uint32_t total = __reduce_add_sync(~0u, sums);
  return {{int(before & 0xffff), int(before >> 16)}, {int(total & 0xffff), int(total >> 16)}};
}

// How many items of each of 32 bins the warp's threads hold, lane by lane: lane l gets the count of bin l.
// `bin` is 0..31, `counted` says whether the thread's item is one. No memory, no divergence.
__device__ __forceinline__ int warp_histogram(int bin, bool counted) {
  uint32_t mine = __ballot_sync(~0u, counted);
#pragma unroll
  for (int bit = 0; bit < 5; bit++) {
    const uint32_t set = __ballot_sync(~0u, bin >> bit & 1);
    mine &= (threadIdx.x >> bit & 1) ? set : ~set;
  }
  return __popc(mine);
}

// Cluster barrier in two halves: writes behind wait() come after the reads before arrive() of all blocks.
// Every thread of every block of the cluster must call both.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait;" ::: "memory");
}
__device__ __forceinline__ int cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return int(rank);
}
__device__ __forceinline__ int cluster_blocks() {
  uint32_t blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return int(blocks);
}

// With programmatic dependent launch a kernel starts while the one before it drains; nothing that an earlier
// kernel wrote may be read, and nothing written, before this. Without it this returns at once.
__device__ __forceinline__ void wait_for_earlier_kernels() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace hisparse
