// Exact least-recently-used victims of one hot table, by one thread block.
//
// Candidates are the entries e < usable with stamp != now. The result is the first `wanted` of them in
// ascending (stamp, e), found without sorting the table:
//   a. radix select: the key of the wanted-th candidate, most significant differing digit first
//   b. compact: all candidates below that key and, lowest e first, as many of those equal to it as are still
//   wanted c. sort the chosen ones by key; b left them in order of e and the sort is stable
#pragma once

#include <cstdint>
#include <cub/block/block_radix_sort.cuh>

#include "block.cuh"

namespace hisparse {

struct Evict {
  static constexpr int kDigit = 8;  // bits a histogram resolves
  static constexpr int kBins = 1 << kDigit;
  static constexpr int kWide = 8;  // items a thread sorts when one a thread is not enough
  static_assert(kBins % 32 == 0);

  using NarrowSort = cub::BlockRadixSort<uint32_t, kThreads, 1, uint16_t>;
  using WideSort = cub::BlockRadixSort<uint32_t, kThreads, kWide, uint16_t>;

  struct alignas(16) Storage {
    union {
      typename NarrowSort::TempStorage narrow;
      typename WideSort::TempStorage wide;
      int32_t bins[kBins];
    };
    ScanStorage scan;
    int32_t digit, rank;  // of the wanted-th candidate, found by warp 0
  };

  // Stamps are signed; the key orders them as unsigned.
  __device__ static uint32_t key_of(int32_t stamp) { return uint32_t(stamp) ^ 0x80000000u; }
  __device__ static uint32_t above(uint32_t key, int bits) { return bits == 32 ? 0 : key >> bits; }
  __device__ static int width(uint32_t value) { return 32 - __clz(value); }

  // Fills victim[0 .. result) with min(wanted, candidates) entries, in order. Called by all threads, which
  // must see the stamps already; victim may be read by all threads on return. victim has room for `wanted` <=
  // kWide * kThreads entries.
  __device__ static int run(const int32_t* stamp, int usable, int32_t now, int wanted, uint16_t* victim,
                            Storage& storage) {
    Range range{~0u, 0};
    int candidates = 0;
    for (int e = threadIdx.x; e < usable; e += kThreads) {
      if (stamp[e] == now) continue;
      const uint32_t key = key_of(stamp[e]);
      range = {min(range.low, key), max(range.high, key)};
      candidates++;
    }
    wanted = min(wanted, block_sum(candidates, storage.scan));
    if (wanted == 0) return 0;
    range = block_range(range, storage.scan);

    const auto [last, equal_wanted] = select(stamp, usable, now, wanted, range, storage);
    compact(stamp, usable, now, last, equal_wanted, victim, storage.scan);
    const int bits = width(last - range.low);
    if (bits > 0 && wanted <= kThreads) {
      sort<1, NarrowSort>(stamp, range.low, bits, wanted, victim, storage.narrow);
    } else if (bits > 0) {
      sort<kWide, WideSort>(stamp, range.low, bits, wanted, victim, storage.wide);
    }
    return wanted;
  }

 private:
  struct Last {
    uint32_t key;  // of the last victim
    int equal;     // victims that have this key
  };

  __device__ static Last select(const int32_t* stamp, int usable, int32_t now, int rank, Range range,
                                Storage& storage) {
    int bits = width(range.low ^ range.high);  // key bits still unknown
    uint32_t known = above(range.low, bits);   // the bits above them
    while (bits > 0) {
      const int digit_bits = min(bits, kDigit);
      for (int bin = threadIdx.x; bin < kBins; bin += kThreads) storage.bins[bin] = 0;
      __syncthreads();
      for (int e = threadIdx.x; e < usable; e += kThreads) {
        const uint32_t key = key_of(stamp[e]);
        if (stamp[e] == now || above(key, bits) != known) continue;
        atomicAdd(&storage.bins[above(key, bits - digit_bits) & ((1u << digit_bits) - 1)], 1);
      }
      __syncthreads();
      if (threadIdx.x < 32) pick_bin(rank, storage);
      __syncthreads();
      rank = storage.rank;
      known = known << digit_bits | uint32_t(storage.digit);
      bits -= digit_bits;
      __syncthreads();
    }
    return {known, rank};
  }

  // The bin that holds the rank-th item, counted from 1, and the item's rank inside it. One warp.
  __device__ static void pick_bin(int rank, Storage& storage) {
    constexpr int kPerLane = kBins / 32;
    const int lane = threadIdx.x;
    int sum = 0;
    for (int b = 0; b < kPerLane; b++) sum += storage.bins[lane * kPerLane + b];
    int before = sum;  // becomes the items in bins of lower lanes
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, before, step);
      if (lane >= step) before += other;
    }
    before -= sum;
    for (int b = 0; b < kPerLane; b++) {
      const int items = storage.bins[lane * kPerLane + b];
      if (before < rank && rank <= before + items) {
        storage.digit = lane * kPerLane + b;
        storage.rank = rank - before;
      }
      before += items;
    }
  }

  __device__ static void compact(const int32_t* stamp, int usable, int32_t now, uint32_t last,
                                 int equal_wanted, uint16_t* victim, ScanStorage& scan) {
    int below = 0, equal = 0;  // seen so far
    for (int base = 0; base < usable; base += kThreads) {
      const int e = base + threadIdx.x;
      const bool candidate = e < usable && stamp[e] != now;
      const uint32_t key = candidate ? key_of(stamp[e]) : 0;
      const Rank rank = block_rank(candidate && key < last, candidate && key == last, scan);
      const int below_before = below + rank.before_a, equal_before = equal + rank.before_b;
      if (candidate && (key < last || (key == last && equal_before < equal_wanted))) {
        victim[below_before + min(equal_before, equal_wanted)] = e;
      }
      below += rank.total_a;
      equal += rank.total_b;
    }
    __syncthreads();
  }

  template <int kItems, typename Sort>
  __device__ static void sort(const int32_t* stamp, uint32_t low, int bits, int victims, uint16_t* victim,
                              typename Sort::TempStorage& storage) {
    uint32_t key[kItems];
    uint16_t entry[kItems];
#pragma unroll
    for (int k = 0; k < kItems; k++) {
      const int j = threadIdx.x * kItems + k;
      // Padding stands behind the victims and has the largest key: the stable sort keeps it there.
      entry[k] = j < victims ? victim[j] : 0;
      key[k] = j < victims ? key_of(stamp[entry[k]]) - low : ~0u;
    }
    Sort(storage).Sort(key, entry, 0, bits);
#pragma unroll
    for (int k = 0; k < kItems; k++) {
      const int j = threadIdx.x * kItems + k;
      if (j < victims) victim[j] = entry[k];
    }
    __syncthreads();
  }
};

}  // namespace hisparse
