// Resolve: one request's selected slots -> device rows, one thread block a request, in the steps and with the
// exact results of sglang_hisparse/kernels/reference.py:
//
//   step        state                                     entry becomes
//   1 map       slot outside the map, or page nowhere     -1
//               page has device page d                    d * 64 + offset          (resident)
//   2 union     page has host page h                      one spilled slot, in order of first appearance
//               no spilled slot                           done: no hot table is read or written
//               hot_index[request] < 0                    -1                       (overflow)
//   3 clock     clock += 1 = now
//   4 hit       an entry e < hot_len caches the slot      hot_rows[e], stamp = now (hot)
//   5 victims   entries e < hot_len with stamp != now, by (stamp, e): the j-th miss takes the j-th victim
//   6 fetch     the miss has a victim e                   hot_rows[e], slot and stamp set, row read (missed)
//               it has none                               -1                       (overflow)
//
// A spilled slot is known below by the index of its first appearance among the request's entries.
#pragma once

#include <climits>
#include <cstdint>

#include "evict.cuh"
#include "layout.cuh"

namespace hisparse {

constexpr int kMaxEntries = 8192;   // q * W of one request; first appearances are stored as uint16
constexpr int kMaxHotRows = 32768;  // hot rows of one request; entries are stored as uint16
constexpr int kUnset = INT_MAX;

struct ResolveParams {
  const int32_t* page_map;  // [pages]
  uint32_t pages;
  int32_t hot_stride;        // most hot rows of a request
  const int32_t* hot_index;  // [requests]
  const int32_t* hot_rows;   // [tables, hot_stride]
  const int32_t* hot_len;    // [tables]
  int32_t* hot_slot;         // [tables, hot_stride] of this group
  int32_t* hot_stamp;        // [tables, hot_stride] of this group
  int32_t* clock;            // [tables] of this group
  const GroupPlane* planes;  // [plane_count]
  const uint8_t* host;       // host row 0 of the group
  int64_t host_row_bytes;
  const int32_t* selection;   // [gridDim.x, entries]
  const void* request;        // [gridDim.x]
  int32_t* out;               // like selection; may be the same memory
  unsigned long long* stats;  // [4] resident, hot, missed, overflow; or null
  int32_t plane_count;
  int32_t entries;    // q * W
  int32_t cell_bits;  // the hash has 2^cell_bits cells, at least 2 * entries
};

// Shared memory of one block. The host sizes it with bytes(), the kernel cuts it with the constructor.
struct Workspace {
  Evict::Storage* evict;
  int32_t* cell;     // [cells]   hash of the spilled slots: index of first appearance, or kUnset
  int32_t* slot;     // [entries] the entry's slot where it is spilled, else kNothing
  int32_t* entry;    // [entries] by first appearance: hot entry that holds the slot, or kUnset
  uint16_t* miss;    // [entries] first appearances of the misses, ascending
  uint16_t* victim;  // [entries] hot entries they take

  __host__ __device__ static size_t bytes(int entries, int cell_bits) {
    return sizeof(Evict::Storage) + sizeof(int32_t) * ((size_t(1) << cell_bits) + 2 * size_t(entries)) +
           2 * sizeof(uint16_t) * size_t(entries);
  }

  __device__ Workspace(uint8_t* memory, int entries, int cell_bits) {
    evict = reinterpret_cast<Evict::Storage*>(memory);
    cell = reinterpret_cast<int32_t*>(memory + sizeof(Evict::Storage));
    slot = cell + (1 << cell_bits);
    entry = slot + entries;
    miss = reinterpret_cast<uint16_t*>(entry + entries);
    victim = miss + entries;
  }
};

// The set of spilled slots: open addressing, at most half full, so every probe ends.
struct SlotSet {
  int32_t* cell;
  const int32_t* slot;
  int bits;

  __device__ uint32_t start(int32_t key) const { return (uint32_t(key) * 2654435761u) >> (32 - bits); }
  __device__ uint32_t next(uint32_t at) const { return (at + 1) & ((1u << bits) - 1); }

  // Adds slot[i]. All indices that ever stand in one cell have the same slot; the smallest stays.
  __device__ void insert(int i) const {
    for (uint32_t at = start(slot[i]);; at = next(at)) {
      const int held = atomicCAS(&cell[at], kUnset, i);
      if (held == kUnset) return;
      if (slot[held] == slot[i]) {
        atomicMin(&cell[at], i);
        return;
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

__device__ __forceinline__ int lookup(const ResolveParams& p, int32_t slot) {
  const uint32_t page = uint32_t(slot) / kPage;  // a negative slot becomes a page far outside any map
  return page < p.pages ? p.page_map[page] : kNothing;
}

__device__ __forceinline__ void count(const ResolveParams& p, int which, int amount) {
  if (p.stats != nullptr && threadIdx.x == 0 && amount > 0) {
    atomicAdd(&p.stats[which], static_cast<unsigned long long>(amount));
  }
}

// Step 6: one warp copies one plane of one missed slot.
__device__ void gather(const ResolveParams& p, const Workspace& w, const int32_t* hot_rows, int victims) {
  const int lane = threadIdx.x % 32;
  for (int work = threadIdx.x / 32; work < victims * p.plane_count; work += kThreads / 32) {
    const int miss = work / p.plane_count;
    const GroupPlane plane = p.planes[work % p.plane_count];
    const int32_t slot = w.slot[w.miss[miss]];
    const int64_t host_row = int64_t(host_page(lookup(p, slot))) * kPage + slot % kPage;
    const int64_t device_row = hot_rows[w.victim[miss]];
    const uint8_t* source = p.host + host_row * p.host_row_bytes + plane.host_offset;
    uint8_t* target = reinterpret_cast<uint8_t*>(plane.device) + device_row * plane.row_bytes;
    for (int64_t at = lane * kChunk; at < plane.row_bytes; at += 32 * kChunk) {
      store_chunk(target + at, load_chunk(source + at));
    }
  }
}

template <typename Request>
__global__ __launch_bounds__(kThreads, 1) void resolve_kernel(const __grid_constant__ ResolveParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  const Workspace w(memory, p.entries, p.cell_bits);
  const int tid = threadIdx.x;
  const int32_t* selection = p.selection + int64_t(blockIdx.x) * p.entries;
  int32_t* out = p.out + int64_t(blockIdx.x) * p.entries;
  const Request request = static_cast<const Request*>(p.request)[blockIdx.x];
  if (request < 0) {
    for (int i = tid; i < p.entries; i += kThreads) out[i] = kNothing;
    return;
  }

  // 1 map
  int resident = 0;
  bool spilled = false;
  for (int i = tid; i < p.entries; i += kThreads) {
    const int32_t slot = selection[i];
    const int mapped = lookup(p, slot);
    w.slot[i] = mapped < kNothing ? slot : kNothing;
    out[i] = mapped >= 0 ? mapped * kPage + slot % kPage : kNothing;
    resident += mapped >= 0;
    spilled |= mapped < kNothing;
  }
  count(p, 0, block_sum(resident, w.evict->scan));
  if (!__syncthreads_or(spilled)) return;

  // 2 union
  const SlotSet set{w.cell, w.slot, p.cell_bits};
  for (int c = tid; c < 1 << p.cell_bits; c += kThreads) w.cell[c] = kUnset;
  for (int i = tid; i < p.entries; i += kThreads) w.entry[i] = kUnset;
  __syncthreads();
  for (int i = tid; i < p.entries; i += kThreads) {
    if (w.slot[i] >= 0) set.insert(i);
  }
  __syncthreads();

  // 3 clock
  const int t = p.hot_index[request];
  const int usable = t < 0 ? 0 : p.hot_len[t];
  const int64_t table = int64_t(max(t, 0)) * p.hot_stride;
  const int32_t* hot_rows = p.hot_rows + table;
  int32_t* hot_slot = p.hot_slot + table;
  int32_t* hot_stamp = p.hot_stamp + table;
  const int now = t < 0 ? 0 : p.clock[t] + 1;

  // 4 hit
  for (int e = tid; e < usable; e += kThreads) {
    const int32_t cached = hot_slot[e];
    const int first = cached < 0 ? kNothing : set.find(cached);
    if (first >= 0) atomicMin(&w.entry[first], e);
  }
  __syncthreads();
  if (t >= 0 && tid == 0) p.clock[t] = now;
  int hits = 0, misses = 0;
  for (int base = 0; base < p.entries; base += kThreads) {
    const int i = base + tid;
    const bool first = i < p.entries && w.slot[i] >= 0 && set.find(w.slot[i]) == i;
    const bool hit = first && w.entry[i] != kUnset;
    const bool miss = first && !hit;
    if (hit) hot_stamp[w.entry[i]] = now;
    hits += hit;
    const Rank rank = block_rank(miss, false, w.evict->scan);
    if (miss) w.miss[misses + rank.before_a] = i;
    misses += rank.total_a;
  }
  count(p, 1, block_sum(hits, w.evict->scan));

  // 5 victims, 6 fetch. The barriers inside block_sum order the stamps above before they are read here.
  if (misses > 0) {
    const int victims = Evict::run(hot_stamp, usable, now, misses, w.victim, *w.evict);
    for (int j = tid; j < victims; j += kThreads) {
      const int first = w.miss[j], e = w.victim[j];
      hot_slot[e] = w.slot[first];
      hot_stamp[e] = now;
      w.entry[first] = e;
    }
    __syncthreads();
    gather(p, w, hot_rows, victims);
    count(p, 2, victims);
    count(p, 3, misses - victims);
  }

  for (int i = tid; i < p.entries; i += kThreads) {
    if (w.slot[i] < 0) continue;
    const int e = w.entry[set.find(w.slot[i])];
    if (e != kUnset) out[i] = hot_rows[e];
  }
}

}  // namespace hisparse
