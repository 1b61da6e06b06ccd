// Least-recently-used victims of one hot table, by one thread block: the oldest entries that this step does
// not use, ties by entry, in order of entries. Ages are steps since the last use, at most kMaxAge, and 0 for
// an entry that this step uses: few enough to count each, so that the age of the last victim is found without
// a sort.
#pragma once

#include <cstdint>

#include "block.cuh"

namespace hisparse {

constexpr int kMaxAge = 1023;
constexpr int kTileEntries = 4;  // entries a thread looks at, side by side
constexpr int kTile = kThreads * kTileEntries;

struct Evict {
  struct Storage {
    int32_t coarse[32];         // entries by age / 32
    int32_t fine[kMaxAge + 1];  // entries by age
    uint32_t warp[2][kWarps];
  };

  // Entries older than `age` are victims, and the first `equal` of those of that age.
  struct Threshold {
    int age, equal;
  };

  __device__ static void clear(Storage& storage) {  // visible after the next barrier
    for (int bin = threadIdx.x; bin < 32 + kMaxAge + 1; bin += kThreads) storage.coarse[bin] = 0;
  }

  // `wanted` >= 1 and at most the number of entries with age > 0. age [usable] is visible already. One
  // barrier.
  __device__ static Threshold select(const uint16_t* age, int usable, int wanted, Storage& storage) {
#pragma unroll 1
    for (int first = int(threadIdx.x) * kTileEntries; first < usable; first += kTile) {
      const Ages ages = load(age, first, usable);
#pragma unroll
      for (int k = 0; k < kTileEntries; k++) {
        if (ages.age[k] == 0) continue;
        atomicAdd(&storage.coarse[ages.age[k] / 32], 1);
        atomicAdd(&storage.fine[ages.age[k]], 1);
      }
    }
    __syncthreads();
    const Threshold high = pick(storage.coarse, wanted);
    const Threshold low = pick(storage.fine + high.age * 32, high.equal);
    return {high.age * 32 + low.age, low.equal};
  }

  // Calls take(j, e) for the j-th victim, entry e. A barrier a tile.
  template <typename Take>
  __device__ static void visit(const uint16_t* age, int usable, Threshold last, Storage& storage, Take take) {
    int older = 0, equal = 0;  // in earlier tiles
    for (int base = 0, odd = 0; base < usable; base += kTile, odd ^= 1) {
      const int first = base + int(threadIdx.x) * kTileEntries;
      const Ages ages = load(age, first, usable);
      Pair mine{0, 0};
#pragma unroll
      for (int k = 0; k < kTileEntries; k++) {
        const int a = ages.age[k];
        mine.a += a > last.age;
        mine.b += a == last.age;
      }
      const Prefix prefix = block_prefix(mine, storage.warp[odd]);
      int older_before = older + prefix.before.a, equal_before = equal + prefix.before.b;
#pragma unroll
      for (int k = 0; k < kTileEntries; k++) {
        const int a = ages.age[k];
        const bool is_older = a > last.age, is_equal = a == last.age;
        if (is_older || (is_equal && equal_before < last.equal)) {
          take(older_before + min(equal_before, last.equal), first + k);
        }
        older_before += is_older;
        equal_before += is_equal;
      }
      older += prefix.total.a;
      equal += prefix.total.b;
    }
  }

  // Ages of kTileEntries entries side by side, 0 for those at or beyond `usable`. One read.
  struct Ages {
    int age[kTileEntries];
  };
  __device__ static Ages load(const uint16_t* age, int first, int usable) {
    const ushort4 four =
        first < usable ? *reinterpret_cast<const ushort4*>(age + first) : ushort4{0, 0, 0, 0};
    Ages ages{{four.x, four.y, four.z, four.w}};
#pragma unroll
    for (int k = 0; k < kTileEntries; k++) {
      if (first + k >= usable) ages.age[k] = 0;
    }
    return ages;
  }

 private:
  // The oldest bin at which `wanted` items are reached, and how many of it are wanted. Every warp does it for
  // itself.
  __device__ static Threshold pick(const int32_t* bins, int wanted) {
    const int lane = threadIdx.x % 32, items = bins[lane];
    int reached = items;  // becomes the items in this bin and older ones
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_down_sync(~0u, reached, step);
      if (lane + step < 32) reached += other;
    }
    const uint32_t enough = __ballot_sync(~0u, reached >= wanted);
    const int bin = 31 - __clz(enough);
    return {bin, wanted - (__shfl_sync(~0u, reached, bin) - __shfl_sync(~0u, items, bin))};
  }
};

}  // namespace hisparse
