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
//   barriers                 block 0                        the other blocks
//   prefix (1)               selection, page map, hot tables: all read them
//   insert, hits (2)         hash of the step's slots in shared memory; every hot entry looks itself up in it
//   cluster                  ------- nobody reads hot_slot, hot_stamp or clock of this request any more
//   ------- prefix (1), lists (1)    misses in order; the first reads from the host are under way from here
//   on select (2), visit (1)    victims; tables, results        victims (1)                      rows arrive
//   rows arrive
#pragma once

#include <cstdint>

#include "evict.cuh"
#include "gather.cuh"
#include "layout.cuh"
#include "slot_set.cuh"

namespace hisparse {

constexpr int kMaxEntries = 8192;   // q * W of one request: at most 8 a thread
constexpr int kMaxHotRows = 32768;  // hot rows of one request
constexpr int kRepeated = INT_MIN;
constexpr int kHeatStride = 16;  // every 16th entry of a selection warms its page

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
  int2* miss_rows;            // [batch, miss_stride] host row, device row of what was fetched; or null
  int32_t* miss_count;        // [batch]
  int32_t miss_stride;
  uint32_t pages;
  int32_t hot_stride;  // most hot rows of a request
  int32_t entries;     // q * W
  int32_t cell_bits;   // the hash has 2^cell_bits cells, at least 2 * entries and 4
  bool wide_request;   // request ids are int64
  bool reads_rows;     // false: everything but the bytes, to see what they cost
  int64_t host_row_bytes;
  int32_t leader_chunks;  // of the leader's planes, which come first
  int32_t
      split_below;    // a request with fewer misses reads those only and lists its rows; never without a list
  PlaneTable planes;  // of the group
};

// Shared memory of one block. The host sizes it with bytes(), the kernel cuts it with the constructor.
struct Workspace {
  Evict::Storage* evict;
  int32_t* cell;        // [2 * cells] the set of steps 2 to 4; then:
  int32_t* miss_row;    // [entries] host rows of the misses
  int32_t* victim_row;  // [entries] device rows that they take
  int32_t* miss_slot;   // [entries] their slots
  int32_t* row;         // [entries] by first appearance: device row, or kNothing
  uint16_t* age;        // [hot_stride, rounded up to whole tiles of a thread]
  uint16_t* miss;       // [entries] first appearances of the misses, ascending

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
    cell = reinterpret_cast<int32_t*>(memory + sizeof(Evict::Storage));
    miss_row = cell;
    victim_row = miss_row + entries;
    miss_slot = victim_row + entries;
    row = cell + (2 << cell_bits);
    age = reinterpret_cast<uint16_t*>(row + rows(entries));
    miss = age + ages(hot_stride);
  }
};
static_assert(sizeof(Evict::Storage) % 16 == 0);

// Every blocks-th miss, from the block's rank on.
struct MissRows {
  const int32_t* host;
  const int32_t* device;
  int rank, blocks;
  __device__ int host_row(int n) const { return host[n * blocks + rank]; }
  __device__ int device_row(int n) const { return device[n * blocks + rank]; }
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

  const SlotSet set{w.cell, w.cell + (1 << p.cell_bits), p.cell_bits};
  set.clear();
  Evict::clear(*w.evict);
  wait_for_earlier_kernels();

  // Reads that wait for nothing go together, then those that wait for them: every round is a trip to memory.
  const int64_t request = p.wide_request ? static_cast<const int64_t*>(p.request)[batch]
                                         : static_cast<const int32_t*>(p.request)[batch];
  int32_t slot[kEntries], row[kEntries];
#pragma unroll
  for (int k = 0; k < kEntries; k++) {
    slot[k] = first_entry + k < p.entries ? selection[first_entry + k] : kNothing;
  }
  if (writes && tid == 0 && p.miss_count != nullptr) p.miss_count[batch] = 0;

  // 1 map. What a thread knows of an entry, in one word:
  //   >= 0                device row
  //   kNothing            selects nothing
  //   below               host row kNothing - 1 - row, spilled
  //   kRepeated + i       spilled, and entry i < kMaxEntries has the same slot (from step 2 on)
  int page[kEntries];
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
  HotTile
      tile;  // read before it is known whether it is needed, which it is for a request that leases hot rows
  tile.load(hot_slot, hot_stamp, hot_rows, tid * kTileEntries, t < 0 ? 0 : p.hot_stride, aligned);
  const int usable = t < 0 ? 0 : p.hot_len[t];
  const int now = t < 0 ? 0 : p.clock[t] + 1;
  Pair mapped{0, 0};  // resident, spilled
#pragma unroll
  for (int k = 0; k < kEntries; k++) {
    const int offset = slot[k] % kPage;
    row[k] = page[k] >= 0          ? page[k] * kPage + offset
             : page[k] == kNothing ? kNothing
                                   : (page[k] + 2) * kPage - 2 - offset;
    mapped.a += row[k] >= 0;
    mapped.b += row[k] < kNothing;
    if (p.heat != nullptr && writes && (first_entry + k) % kHeatStride == 0 && row[k] != kNothing) {
      atomicAdd(&p.heat[uint32_t(slot[k]) / kPage], 1);
    }
  }
#pragma unroll
  for (int k = 0; k < kEntries; k++) {
    if (first_entry + k < p.entries) w.row[first_entry + k] = kNothing;
  }
  const Pair all = block_prefix(mapped, w.evict->warp[0]).total;
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
  bool spilled[kEntries];
#pragma unroll
  for (int k = 0; k < kEntries; k++) spilled[k] = row[k] < kNothing;
  set.insert(slot, spilled, first_entry, cell);
  __syncthreads();

  // 3 clock, 4 hit: an entry that caches one of the slots tells it its row.
#pragma unroll
  for (int k = 0; k < kEntries; k++) {
    const int first = row[k] < kNothing ? set.first[cell[k]] : first_entry + k;
    if (first != first_entry + k) row[k] = kRepeated + first;
  }
  const auto is_first = [](int32_t row) { return row < kNothing && row >= kRepeated + kMaxEntries; };
  const auto look_up = [&](HotTile& hot, int e) {
#pragma unroll
    for (int k = 0; k < kTileEntries; k++) {
      if (e + k >= usable) hot.slot[k] = kNothing;
    }
    int hit[kTileEntries];
    set.find(hot.slot, hit);
#pragma unroll
    for (int k = 0; k < kTileEntries; k++) {
      if (e + k >= usable) continue;
      if (hit[k] >= 0) w.row[hit[k]] = hot.row[k];
      const int32_t steps = int32_t(uint32_t(now) - uint32_t(hot.stamp[k]));
      w.age[e + k] = hit[k] >= 0 ? 0 : uint16_t(min(max(steps, 1), kMaxAge));
    }
  };
  look_up(tile, tid * kTileEntries);
  for (int e = kTile + tid * kTileEntries; e < usable; e += kTile) {
    HotTile later;
    later.load(hot_slot, hot_stamp, hot_rows, e, usable, aligned);
    look_up(later, e);
  }
  __syncthreads();
  cluster_arrive();

  // 5 misses, in order. Their lists lie where the hash was.
  Pair found{0, 0};  // misses, hits
#pragma unroll
  for (int k = 0; k < kEntries; k++) {
    if (!is_first(row[k])) continue;
    const bool hit = w.row[first_entry + k] >= 0;
    found.a += !hit;
    found.b += hit;
  }
  const Prefix order = block_prefix(found, w.evict->warp[1]);
  const int misses = order.total.a, hits = order.total.b;
  int j = order.before.a;
#pragma unroll
  for (int k = 0; k < kEntries; k++) {
    if (is_first(row[k]) && w.row[first_entry + k] < 0) {
      w.miss[j] = uint16_t(first_entry + k);
      w.miss_row[j] = kNothing - 1 - row[k];
      w.miss_slot[j] = selection[first_entry + k];  // again: in L1, and no register is left
      j++;
    }
  }
  __syncthreads();

  // The first reads start before their victims are known: that time is hidden behind the link's latency.
  const int victims = min(misses, usable - hits);
  const MissRows mine{w.miss_row, w.victim_row, rank, blocks};
  const int rows = victims > rank ? (victims - rank + blocks - 1) / blocks : 0;
  const bool lists = p.miss_rows != nullptr && victims < p.split_below;
  const int chunks = lists ? p.leader_chunks : p.planes.chunks;
  const int total = p.reads_rows ? rows * chunks : 0;
  const Gather<MissRows> gather{p.planes, mine, p.host_row_bytes, chunks, total, kThreads};
  constexpr int kEarly = kEntries <= 4 ? 3 : 1;  // chunks of a thread: as many as registers are left for
  int4 chunk[kEarly];
  gather.load(tid, chunk);

  cluster_wait();
  for (int e = tid; writes && e < usable; e += kThreads) {
    if (w.age[e] == 0) hot_stamp[e] = now;
  }
  if (victims > 0) {
    const Evict::Threshold last = Evict::select(w.age, usable, victims, *w.evict);
    Evict::visit(w.age, usable, last, *w.evict, [&](int j, int e) {
      const int device_row = hot_rows[e];  // read before: in L1
      w.victim_row[j] = device_row;
      w.row[w.miss[j]] = device_row;
      if (writes) {
        hot_slot[e] = w.miss_slot[j];
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
      const int first = is_first(row[k]) ? first_entry + k : row[k] - kRepeated;
      out[first_entry + k] = row[k] < kNothing ? w.row[first] : row[k];
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
  gather.store(tid, chunk);
  gather.run(tid + kThreads * kEarly);
}

}  // namespace hisparse
