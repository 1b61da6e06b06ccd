// The set of spilled slots of one step: a hash in shared memory, open addressing, at most half full, so that every
// probe ends. A slot is known by the index of its first appearance.
#pragma once

#include <climits>
#include <cstdint>

#include "layout.cuh"

namespace hisparse {

constexpr int kUnset = INT_MAX;

struct SlotSet {
  int32_t* cell;        // [2^bits] index of first appearance, or kUnset
  const int32_t* slot;  // [entries] by index
  int bits;

  __device__ uint32_t start(int32_t key) const { return (uint32_t(key) * 2654435761u) >> (32 - bits); }
  __device__ uint32_t next(uint32_t at) const { return (at + 1) & ((1u << bits) - 1); }

  // Adds slot[i] and returns its cell, which holds the first appearance once all threads have added theirs: all
  // indices that ever stand in one cell have the same slot, and the smallest stays.
  __device__ uint32_t insert(int i) const {
    for (uint32_t at = start(slot[i]);; at = next(at)) {
      const int held = atomicCAS(&cell[at], kUnset, i);
      if (held == kUnset) return at;
      if (slot[held] == slot[i]) {
        atomicMin(&cell[at], i);
        return at;
      }
    }
  }

  // Index of first appearance of `key`, or kNothing.
  __device__ int find(int32_t key) const {
    for (uint32_t at = start(key);; at = next(at)) {
      const int held = cell[at];
      if (held == kUnset) return kNothing;
      if (slot[held] == key) return held;
    }
  }
};

}  // namespace hisparse
