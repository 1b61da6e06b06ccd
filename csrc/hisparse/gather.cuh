// Rows between the tiers: one flat range of 16-byte chunks over (row, plane, chunk), so that all threads
// touch consecutive chunks of a host row, with kDepth of them in flight each.
#pragma once

#include <cstdint>

#include "layout.cuh"

namespace hisparse {

constexpr int kMaxPlanes = 16;
constexpr int kDepth = 4;

// Planes of one group, prepared for addressing by the chunk's number among the planes' chunks. Part of
// a kernel's parameters, or in shared memory.
struct PlaneTable {
  int64_t device[kMaxPlanes];  // device row r, chunk k of a host row: device + r * row_bytes + k * 16
  int64_t host[kMaxPlanes];    // host row r, the same chunk:           host + r * host_row_bytes + k * 16
  int32_t row_bytes[kMaxPlanes];
  int32_t end[kMaxPlanes];  // first chunk behind the plane
  int32_t chunks;           // of all planes; a copy may take the first of them only

  // The planes first .. first + count - 1 of `planes`; host row 0 is at `host_rows`.
  __host__ __device__ void fill(const GroupPlane* planes, int first, int count, int64_t host_rows) {
    chunks = 0;
#pragma unroll 1
    for (int p = 0; p < kMaxPlanes; p++) {
      const GroupPlane plane = p < count ? planes[first + p] : GroupPlane{};
      device[p] = plane.device - int64_t(chunks) * kChunk;
      host[p] = host_rows + plane.host_offset - int64_t(chunks) * kChunk;
      row_bytes[p] = int(plane.row_bytes);
      chunks += int(plane.row_bytes / kChunk);
      end[p] = chunks;
    }
  }

  __device__ int plane_of(int chunk) const {
    int p = 0;
    while (chunk >= end[p]) p++;
    return p;
  }
};

// Host rows to device rows, or back. `Rows` maps a row number of the range to host_row(n) and device_row(n).
template <typename Rows, bool kToHost = false>
struct Gather {
  const PlaneTable& planes;
  Rows rows;
  int64_t host_row_bytes;
  int chunks;  // of a row
  int total;   // rows * chunks
  int step;    // threads that share the range

  // A chunk of the range. Walking from one to the next takes no division.
  struct At {
    int at, row, chunk;
  };
  __device__ At from(int at) const {
    const int row = at / chunks;
    return {at, row, at - row * chunks};
  }
  __device__ void advance(At& a) const {
    const int rows_on = step / chunks;
    a.at += step;
    a.row += rows_on;
    a.chunk += step - rows_on * chunks;
    if (a.chunk >= chunks) a.chunk -= chunks, a.row++;
  }

  __device__ uint8_t* on_host(At a) const {
    return reinterpret_cast<uint8_t*>(planes.host[planes.plane_of(a.chunk)] +
                                      int64_t(rows.host_row(a.row)) * host_row_bytes + a.chunk * kChunk);
  }
  __device__ uint8_t* on_device(At a) const {
    const int p = planes.plane_of(a.chunk);
    return reinterpret_cast<uint8_t*>(
        planes.device[p] + int64_t(rows.device_row(a.row)) * planes.row_bytes[p] + a.chunk * kChunk);
  }

  // Chunks at, at + step, ... of the range; the same `at` for both.
  template <int kCount>
  __device__ void load(int at, int4 (&chunk)[kCount]) const {
    if (at >= total) return;
    At a = from(at);
#pragma unroll
    for (int k = 0; k < kCount; k++, advance(a)) {
      if (a.at < total) chunk[k] = load_chunk(kToHost ? on_device(a) : on_host(a));
    }
  }
  template <int kCount>
  __device__ void store(int at, const int4 (&chunk)[kCount]) const {
    if (at >= total) return;
    At a = from(at);
#pragma unroll
    for (int k = 0; k < kCount; k++, advance(a)) {
      if (a.at < total) store_chunk(kToHost ? on_host(a) : on_device(a), chunk[k]);
    }
  }
  __device__ void run(int at) const {
    for (; at < total; at += step * kDepth) {
      int4 chunk[kDepth];
      load(at, chunk);
      store(at, chunk);
    }
  }
};

}  // namespace hisparse
