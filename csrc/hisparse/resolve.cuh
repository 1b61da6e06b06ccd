// Resolve: one request's selected slots -> device rows, with the exact results of
// sglang_hisparse/kernels/reference.py:
//
//   step        state                                     entry becomes
//   1 map       slot outside the map, or page nowhere     -1
//               page has device page d                    d * 64 + offset          (resident)
//   2 union     page has host page h                      one spilled slot, in order of first appearance
//               no spilled slot                           done: no hot table is read or written
//               hot_index[request] < 0                    -1                       (overflow)
//   3 clock     clock += 1 = now
//   4 hit       an entry e < hot_len caches the slot      hot_rows[e], stamp = now (hot)
//   5 victims   the oldest entries e < hot_len that no slot of this step hits, as many as there are misses;
//   ties by e.
//               age = now - stamp, at most 1,023. The j-th miss takes the j-th of them in order of e
//   6 fetch     the miss has a victim e                   hot_rows[e], slot and stamp set, row read (missed)
//               it has none                               -1                       (overflow)
//
// A cluster of 1 to 8 blocks serves one request. All of them resolve, with the same result and without
// talking to each other; they share the rows to read, and only block 0 writes tables and results. Resolving
// twice costs nothing, since its time is latency; handing a result to another SM would cost some.
//
//   barriers                   block 0                                the other blocks
//   total (1)                  selection, page map, hot tables: all read them
//   insert (1 or 2), hits (1)  a hash of the step's slots; every hot entry looks itself up in it
//   arrive at the cluster's    misses in order; the first reads from the host are under way from here
//   prefix (1), lists (1)
//   wait for the cluster's     nobody reads this request's tables any more
//   select (1), visit (1)      victims; tables, results               victims
//   written (1)                rows arrive                            rows arrive
#pragma once

#include <cstdint>

#include "evict.cuh"
#include "gather.cuh"
#include "layout.cuh"
#include "slot_set.cuh"

namespace hisparse {

constexpr int kMaxEntries = 8192;   // q * W of one request: at most 8 a thread
constexpr int kMaxHotRows = 32768;  // hot rows of one request
constexpr int kHeatStride = 16;     // every 16th entry of a selection warms its page

struct ResolveParams {
  const int32_t* page_map;    // [pages]
  const int32_t* hot_index;   // [requests]
  const int32_t* hot_rows;    // [tables, hot_stride]
  const int32_t* hot_len;     // [tables]
  int32_t* hot_slot;          // [tables, hot_stride] of this group
  int32_t* hot_stamp;         // [tables, hot_stride] of this group
  int32_t* clock;             // [tables] of this group
  const int32_t* selection;   // [batch, entries]
  const void* request;        // [batch]
  int32_t* out;               // [batch, entries], other memory than selection
  unsigned long long* stats;  // [4] resident, hot, missed, overflow; or null
  int32_t* heat;              // [pages] or null
  int2* miss_rows;            // [batch, miss_stride] host row, device row of what was missed; or null
  int32_t* miss_count;        // [batch]
  int32_t miss_stride;
  uint32_t pages;
  int32_t hot_stride;  // most hot rows of a request
  int32_t entries;     // q * W
  int32_t cell_bits;   // the hash has 2^cell_bits cells, at least 2 * entries and 4
  bool wide_request;   // request ids are int64
  bool reads;          // whether missed rows are read; else their bytes come later, or never
  PlaneTable planes;   // of the group
};

// Shared memory of one block. The host sizes it with bytes(), the kernel cuts it with the constructor.
struct Workspace {
  Evict::Storage* evict;
  int32_t* key;         // [cells] of the set
  int32_t* value;       // [cells] of the set: device row of the slot once it has one
  int32_t* miss_row;    // [entries] host rows of the misses
  uint16_t* age;        // [hot_stride, rounded up to whole tiles of a thread]
  uint16_t* miss_cell;  // [entries] cells of the misses

  __host__ __device__ static int ages(int hot_stride) {
    return (hot_stride + kTileEntries - 1) / kTileEntries * kTileEntries;
  }
  __host__ __device__ static size_t bytes(int entries, int cell_bits, int hot_stride) {
    return sizeof(Evict::Storage) + sizeof(int32_t) * (2 * (size_t(1) << cell_bits) + rows(entries)) +
           sizeof(uint16_t) * (size_t(entries) + size_t(ages(hot_stride)));
  }
  __host__ __device__ static size_t rows(int entries) { return (size_t(entries) + 1) / 2 * 2; }

  __device__ Workspace(uint8_t* memory, int entries, int cell_bits, int hot_stride) {
    evict = reinterpret_cast<Evict::Storage*>(memory);
    key = reinterpret_cast<int32_t*>(memory + sizeof(Evict::Storage));
    value = key + (1 << cell_bits);
    miss_row = value + (1 << cell_bits);
    age = reinterpret_cast<uint16_t*>(miss_row + rows(entries));
    miss_cell = age + ages(hot_stride);
  }
};
static_assert(sizeof(Evict::Storage) % 16 == 0);

// Every blocks-th miss, from the block's rank on.
struct MissRows {
  const int32_t* host;
  const uint16_t* cell;
  const int32_t* value;
  int rank, blocks;
  __device__ int host_row(int n) const { return host[n * blocks + rank]; }
  __device__ int device_row(int n) const { return value[cell[n * blocks + rank]]; }
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

// What a thread knows of kTileEntries hot entries side by side. Entries at or beyond `limit` are not read.
struct HotTile {
  int32_t slot[kTileEntries], stamp[kTileEntries], row[kTileEntries];

  __device__ void load(const int32_t* slots, const int32_t* stamps, const int32_t* rows, int first, int limit,
                       bool aligned) {
    if (aligned && first + kTileEntries <= limit) {
      load_four(slots + first, slot);
      load_four(stamps + first, stamp);
      load_four(rows + first, row);
      return;
    }
#pragma unroll
    for (int k = 0; k < kTileEntries; k++) {
      const bool live = first + k < limit;
      slot[k] = live ? slots[first + k] : kNothing;
      stamp[k] = live ? stamps[first + k] : 0;
      row[k] = live ? rows[first + k] : kNothing;
    }
  }

 private:
  __device__ static void load_four(const int32_t* from, int32_t (&to)[kTileEntries]) {
    const int4 four = *reinterpret_cast<const int4*>(from);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  }
};
static_assert(kTileEntries == 4);

// kEntries: entries of a thread, side by side, so that the order of threads is the order of entries.
template <int kEntries>
__global__ __launch_bounds__(kThreads, 1) void resolve_kernel(const __grid_constant__ ResolveParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  const Workspace w(memory, p.entries, p.cell_bits, p.hot_stride);
  const int tid = threadIdx.x, rank = cluster_rank(), blocks = cluster_blocks(), batch = blockIdx.x / blocks;
  const bool writes = rank == 0;
  const int32_t* selection = p.selection + int64_t(batch) * p.entries;
  int32_t* out = p.out + int64_t(batch) * p.entries;
  const int first_entry = tid * kEntries;

  const SlotSet set{w.key, w.value, p.cell_bits};
  set.clear();
  Evict::clear(*w.evict);
  wait_for_earlier_kernels();

  // Reads that wait for nothing go together, then those that wait for them: every round is a trip to memory.
  const int64_t request = p.wide_request ? static_cast<const int64_t*>(p.request)[batch]
                                         : static_cast<const int32_t*>(p.request)[batch];
  int32_t slot[kEntries];
#pragma unroll
  for (int k = 0; k < kEntries; k++) {
    slot[k] = first_entry + k < p.entries ? selection[first_entry + k] : kNothing;
  }
  if (writes && tid == 0 && p.miss_count != nullptr) p.miss_count[batch] = 0;

  // 1 map
  int32_t page[kEntries];
#pragma unroll
  for (int k = 0; k < kEntries; k++) page[k] = lookup(p, slot[k]);
  const int t = request < 0 ? kNothing : p.hot_index[request];
  if (request < 0) {
#pragma unroll
    for (int k = 0; k < kEntries; k++) {
      if (writes && first_entry + k < p.entries) out[first_entry + k] = kNothing;
    }
    return;
  }
  const int64_t table = int64_t(max(t, 0)) * p.hot_stride;
  int32_t* hot_slot = p.hot_slot + table;
  int32_t* hot_stamp = p.hot_stamp + table;
  const int32_t* hot_rows = p.hot_rows + table;
  const bool aligned = p.hot_stride % kTileEntries == 0;
  // Read before it is known whether it is needed, which it is for a request that leases hot rows.
  constexpr bool kEarly = kEntries <= 4;  // else no registers are left for it
  HotTile tile;
  const auto load_tile = [&] {
    tile.load(hot_slot, hot_stamp, hot_rows, tid * kTileEntries, t < 0 ? 0 : p.hot_stride, aligned);
  };
  if constexpr (kEarly) load_tile();
  const int usable = t < 0 ? 0 : p.hot_len[t];
  const int now = t < 0 ? 0 : p.clock[t] + 1;

  int32_t row[kEntries];  // device row, kNothing, or below: host row kNothing - 1 - row, spilled
  bool spilled[kEntries];
  Pair mapped{0, 0};  // resident, spilled
#pragma unroll
  for (int k = 0; k < kEntries; k++) {
    const int offset = slot[k] & (kPage - 1);
    row[k] = page[k] >= 0          ? page[k] * kPage + offset
             : page[k] == kNothing ? kNothing
                                   : (page[k] + 2) * kPage - 2 - offset;
    spilled[k] = row[k] < kNothing;
    mapped.a += row[k] >= 0;
    mapped.b += spilled[k];
    if (p.heat != nullptr && writes && (first_entry + k) % kHeatStride == 0 && row[k] != kNothing) {
      atomicAdd(&p.heat[uint32_t(slot[k]) / kPage], 1);
    }
  }
  const Pair all = block_total(mapped, w.evict->warp[0]);
  if (writes) count(p, 0, all.a);
  if (all.b == 0) {
#pragma unroll
    for (int k = 0; k < kEntries; k++) {
      if (writes && first_entry + k < p.entries) out[first_entry + k] = row[k];
    }
    return;
  }

  // 2 union
  uint32_t cell[kEntries];
  set.insert(slot, spilled, first_entry, cell);
  if constexpr (!kEarly) load_tile();

  // 3 clock, 4 hit: an entry that caches one of the slots tells it its row.
  Pair found{0, 0};  // misses, hits
  const auto look_up = [&](const HotTile& hot, int e) {
    int32_t cached[kTileEntries];
#pragma unroll
    for (int k = 0; k < kTileEntries; k++) {
      cached[k] = e + k < usable && hot.slot[k] >= 0 ? hot.slot[k] : kNoSlot;
    }
    const uint32_t hits = set.tell(cached, hot.row);
    found.b += __popc(hits);
    int age[kTileEntries];
#pragma unroll
    for (int k = 0; k < kTileEntries; k++) {
      const int32_t steps = int32_t(uint32_t(now) - uint32_t(hot.stamp[k]));
      age[k] = (hits >> k & 1) || e + k >= usable ? 0 : min(max(steps, 1), kMaxAge);
    }
    *reinterpret_cast<ushort4*>(w.age + e) =
        ushort4{uint16_t(age[0]), uint16_t(age[1]), uint16_t(age[2]), uint16_t(age[3])};
  };
  if (tid * kTileEntries < usable) look_up(tile, tid * kTileEntries);
#pragma unroll 1
  for (int e = kTile + tid * kTileEntries; e < usable; e += kTile) {
    tile.load(hot_slot, hot_stamp, hot_rows, e, usable, aligned);
    look_up(tile, e);
  }
  __syncthreads();
  if (blocks > 1) cluster_arrive();

  // 5 misses, in order
  bool missed[kEntries];
#pragma unroll
  for (int k = 0; k < kEntries; k++) {
    missed[k] = spilled[k] && set.value[cell[k]] == kFirst + first_entry + k;
    found.a += missed[k];
  }
  const Prefix order = block_prefix(found, w.evict->warp[1]);
  const int misses = order.total.a, hits = order.total.b;
  int j = order.before.a;
#pragma unroll
  for (int k = 0; k < kEntries; k++) {
    if (!missed[k]) continue;
    w.miss_cell[j] = uint16_t(cell[k]);
    w.miss_row[j] = kNothing - 1 - row[k];
    j++;
  }
  __syncthreads();

  // The first reads start before their victims are known: that time is hidden behind the link's latency.
  const int victims = min(misses, usable - hits);
  const MissRows mine{w.miss_row, w.miss_cell, set.value, rank, blocks};
  const int rows = victims > rank ? (victims - rank + blocks - 1) / blocks : 0;
  const bool lists = p.miss_rows != nullptr;
  const int chunks = p.reads ? p.planes.chunks : 0;
  const Gather<MissRows> gather{p.planes, mine, chunks, rows * chunks, kThreads};
  constexpr int kChunks = 2;
  int4 chunk[kChunks];
  if constexpr (kEarly) gather.load(tid, chunk);

  if (writes && blocks > 1) cluster_wait();
  for (int e = tid; writes && e < usable; e += kThreads) {  // side by side: a store of a warp is one access
    if (w.age[e] == 0) hot_stamp[e] = now;
  }
  if (victims > 0) {
    const Evict::Threshold last = Evict::select(w.age, usable, victims, *w.evict);
    Evict::visit(w.age, usable, last, *w.evict, [&](int j, int e) {
      const int device_row = hot_rows[e], taken = w.miss_cell[j];
      set.value[taken] = device_row;
      if (writes) {
        hot_slot[e] = set.key[taken];
        hot_stamp[e] = now;
        if (lists) p.miss_rows[int64_t(batch) * p.miss_stride + j] = {w.miss_row[j], device_row};
      }
    });
    __syncthreads();
  }
  if (writes) {
#pragma unroll
    for (int k = 0; k < kEntries; k++) {
      if (first_entry + k >= p.entries) continue;
      out[first_entry + k] = spilled[k] ? max(set.value[cell[k]], kNothing) : row[k];
    }
    if (tid == 0) {
      if (t >= 0) p.clock[t] = now;
      if (lists) p.miss_count[batch] = victims;
    }
    count(p, 1, hits);
    count(p, 2, victims);
    count(p, 3, misses - victims);
  }

  // 6 fetch
  if constexpr (kEarly) gather.store(tid, chunk);
  gather.run(kEarly ? tid + kThreads * kChunks : tid);
  if (!writes && blocks > 1) cluster_wait();
}

}  // namespace hisparse
