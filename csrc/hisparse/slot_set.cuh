// The set of spilled slots of one step: a hash in shared memory, open addressing, at most half full, so that
// every probe ends; a quarter full where there is room, which keeps the longest probe of a warp short. Keys
// lie apart from what they stand for, so that a probe is one read.
#pragma once

#include <climits>
#include <cstdint>

#include "layout.cuh"

namespace hisparse {

constexpr int kUnset = INT_MAX;

struct SlotSet {
  int32_t* key;    // [2^bits] slot, or kNothing
  int32_t* first;  // [2^bits] smallest index that was added with the slot, or kUnset
  int bits;

  __device__ uint32_t start(int32_t slot) const { return (uint32_t(slot) * 2654435761u) >> (32 - bits); }
  __device__ uint32_t next(uint32_t at) const { return (at + 1) & ((1u << bits) - 1); }

  // Empty. Visible after the next barrier. 2^bits is a multiple of 4.
  __device__ void clear() const {
    int4* keys = reinterpret_cast<int4*>(key);
    int4* firsts = reinterpret_cast<int4*>(first);
    for (int c = threadIdx.x; c < 1 << (bits - 2); c += blockDim.x) {
      keys[c] = int4{kNothing, kNothing, kNothing, kNothing};
      firsts[c] = int4{kUnset, kUnset, kUnset, kUnset};
    }
  }

  // Adds slot[k] >= 0 with index base + k for every k that `wanted` says, and tells each one's cell.
  template <int kCount>
  __device__ void insert(const int32_t (&slot)[kCount], const bool (&wanted)[kCount], int base,
                         uint32_t (&cell)[kCount]) const {
    // All of a thread's probes advance together: their latencies overlap.
    bool pending[kCount], any = false;
#pragma unroll
    for (int k = 0; k < kCount; k++) {
      pending[k] = wanted[k];
      any |= wanted[k];
      cell[k] = start(slot[k]);
    }
    while (any) {
      any = false;
#pragma unroll
      for (int k = 0; k < kCount; k++) {
        if (!pending[k]) continue;
        const int held = atomicCAS(&key[cell[k]], kNothing, slot[k]);
        pending[k] = held != kNothing && held != slot[k];
        if (pending[k]) {
          cell[k] = next(cell[k]);
          any = true;
        } else {
          atomicMin(&first[cell[k]], base + k);
        }
      }
    }
  }

  // For every k: the index of slot[k], or kNothing where it is not in the set or negative.
  template <int kCount>
  __device__ void find(const int32_t (&slot)[kCount], int (&index)[kCount]) const {
    uint32_t at[kCount];
    bool pending[kCount], any = false;
#pragma unroll
    for (int k = 0; k < kCount; k++) {
      at[k] = start(slot[k]);
      index[k] = kNothing;
      pending[k] = slot[k] >= 0;
      any |= pending[k];
    }
    while (any) {
      any = false;
      int held[kCount];
#pragma unroll
      for (int k = 0; k < kCount; k++) held[k] = pending[k] ? key[at[k]] : kNothing;
#pragma unroll
      for (int k = 0; k < kCount; k++) {
        if (pending[k] && held[k] == slot[k]) index[k] = first[at[k]];
        pending[k] = pending[k] && held[k] != kNothing && held[k] != slot[k];
        at[k] = next(at[k]);
        any |= pending[k];
      }
    }
  }
};

}  // namespace hisparse
