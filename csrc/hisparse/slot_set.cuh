// The spilled slots of one step, and what is known of each: a hash in shared memory, at most half full, so
// that every search ends; an eighth full where there is room. Cells lie in buckets of four, which a search
// reads in one access and nearly never leaves.
#pragma once

#include <climits>
#include <cstdint>

#include "layout.cuh"

namespace hisparse {

constexpr int kBucket = 4;
constexpr int kFirst = INT_MIN;  // value kFirst + i: the slot appeared first at index i, and nothing was told
constexpr int32_t kNoSlot = -2;  // equals no key and no empty cell

struct SlotSet {
  int32_t* key;    // [2^bits] slot, or kNothing. 16-byte aligned
  int32_t* value;  // [2^bits] kFirst + smallest index, or what was told (>= 0); of cells with a slot
  int bits;        // at least 2

  __device__ uint32_t start(int32_t slot) const { return (uint32_t(slot) * 2654435761u) >> (32 - bits); }
  __device__ uint32_t next_bucket(uint32_t at) const { return (at + kBucket) & ((1u << bits) - 1); }

  // Empty. Visible after the next barrier.
  __device__ void clear() const {
    int4* keys = reinterpret_cast<int4*>(key);
    for (int c = threadIdx.x; c < 1 << (bits - 2); c += blockDim.x) {
      keys[c] = int4{kNothing, kNothing, kNothing, kNothing};
    }
  }

  // Adds slot[k] >= 0 with index base + k for every k that `wanted` says, and tells each one's cell. A slot
  // goes through all cells of a bucket, from one that its hash says, before it goes to the next bucket. One
  // barrier, or two where a slot is added twice; the set is complete behind them.
  template <int kCount>
  __device__ void insert(const int32_t (&slot)[kCount], const bool (&wanted)[kCount], int base,
                         uint32_t (&cell)[kCount]) const {
    // All of a thread's probes advance together: their latencies overlap.
    uint32_t pending = 0, again = 0;
#pragma unroll
    for (int k = 0; k < kCount; k++) {
      pending |= uint32_t(wanted[k]) << k;
      cell[k] = start(slot[k]);
    }
    for (int probe = 1; pending != 0; probe++) {
      int32_t held[kCount];
#pragma unroll
      for (int k = 0; k < kCount; k++) {
        if (pending >> k & 1) held[k] = atomicCAS(&key[cell[k]], kNothing, slot[k]);
      }
#pragma unroll
      for (int k = 0; k < kCount; k++) {
        if (!(pending >> k & 1)) continue;
        if (held[k] == kNothing) {
          value[cell[k]] = kFirst + base + k;
        } else if (held[k] == slot[k]) {
          again |= 1u << k;
        } else {
          const uint32_t in_bucket = (cell[k] & ~(kBucket - 1u)) | ((cell[k] + 1) & (kBucket - 1u));
          cell[k] = probe % kBucket == 0 ? next_bucket(cell[k]) : in_bucket;
          continue;
        }
        pending &= ~(1u << k);
      }
    }
    if (!__syncthreads_or(again != 0)) return;
#pragma unroll
    for (int k = 0; k < kCount; k++) {
      if (again >> k & 1) atomicMin(&value[cell[k]], kFirst + base + k);
    }
    __syncthreads();
  }

  // Writes told[k] >= 0 to the slots slot[k] (>= 0, or kNoSlot) that are in the set; bit k of the result says
  // which are. Nobody adds meanwhile, and nobody else tells the same slot.
  template <int kCount>
  __device__ uint32_t tell(const int32_t (&slot)[kCount], const int32_t (&told)[kCount]) const {
    uint32_t bucket[kCount], pending = (1u << kCount) - 1, found = 0;
#pragma unroll
    for (int k = 0; k < kCount; k++) bucket[k] = start(slot[k]) & ~(kBucket - 1u);
    do {
      uint32_t further = 0;
#pragma unroll
      for (int k = 0; k < kCount; k++) {
        if (!(pending >> k & 1)) continue;
        const int4 held = *reinterpret_cast<const int4*>(key + bucket[k]);
        const int32_t s = slot[k];
        const int way = held.x == s ? 0 : held.y == s ? 1 : held.z == s ? 2 : 3;
        if (way < 3 || held.w == s) {
          value[bucket[k] + way] = told[k];
          found |= 1u << k;
        } else if ((held.x | held.y | held.z | held.w) >= 0) {  // full: the slot may be in the next one
          bucket[k] = next_bucket(bucket[k]);
          further |= 1u << k;
        }
      }
      pending = further;
    } while (pending != 0);
    return found;
  }
};

}  // namespace hisparse
