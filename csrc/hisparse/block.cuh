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

// The same sums, of the whole block only.
__device__ __forceinline__ Pair block_total(Pair value, uint32_t* warp) {
  const uint32_t sum = __reduce_add_sync(~0u, uint32_t(value.a) | uint32_t(value.b) << 16);
  if (threadIdx.x % 32 == 0) warp[threadIdx.x / 32] = sum;
  __syncthreads();
  const uint32_t total = __reduce_add_sync(~0u, warp[threadIdx.x % 32]);
  return {int(total & 0xffff), int(total >> 16)};
}

// Cluster barrier in two halves: what is behind wait() comes after the reads before arrive() of all blocks,
// where their values were used before. It says nothing of writes: "relaxed" spares a fence, 1 to 2 us of a
// small launch. Every thread of every block of the cluster must call both, whole warps at once. wait()
// empties the L1 cache.
__device__ __forceinline__ void cluster_arrive() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  __syncwarp();
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
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
