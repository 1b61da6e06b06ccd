// Host rows to device rows: one flat range of 16-byte chunks over (row, plane, chunk), so that all threads
// touch consecutive chunks, with kDepth of them in flight each.
#pragma once

#include <cstdint>

#include "layout.cuh"

namespace hisparse {

constexpr int kMaxPlanes = 16;
constexpr int kDepth = 4;

// Planes of one group, prepared for addressing by the chunk's number among the planes' chunks. Part of
// a kernel's parameters.
struct PlaneTable {
  int64_t device[kMaxPlanes];  // device row r, chunk k of all planes: device + r * row_bytes + k * 16
  int64_t host[kMaxPlanes];    // host row r, the same chunk:          host + r * host_pitch + k * 16
  int32_t row_bytes[kMaxPlanes];
  int32_t host_pitch[kMaxPlanes];
  int32_t end[kMaxPlanes];  // first chunk behind the plane
  int32_t chunks;           // of all planes

  void fill(const GroupPlane* planes, int count) {
    chunks = 0;
    for (int p = 0; p < kMaxPlanes; p++) {
      const GroupPlane plane = p < count ? planes[p] : GroupPlane{};
      device[p] = plane.device - int64_t(chunks) * kChunk;
      host[p] = plane.host - int64_t(chunks) * kChunk;
      row_bytes[p] = int(plane.row_bytes);
      host_pitch[p] = int(plane.host_pitch);
      chunks += int(plane.row_bytes / kChunk);
      end[p] = chunks;
    }
  }

  __device__ int plane_of(int chunk) const {
    int p = 0;
    while (chunk >= end[p]) p++;
    return p;
  }
  __device__ const uint8_t* on_host(int row, int chunk) const {
    const int p = plane_of(chunk);
    return reinterpret_cast<const uint8_t*>(host[p] + int64_t(row) * host_pitch[p] + chunk * kChunk);
  }
  __device__ uint8_t* on_device(int row, int chunk) const {
    const int p = plane_of(chunk);
    return reinterpret_cast<uint8_t*>(device[p] + int64_t(row) * row_bytes[p] + chunk * kChunk);
  }
};

// Host rows to device rows. `Rows` maps a row number of the range to host_row(n) and device_row(n).
template <typename Rows>
struct Gather {
  const PlaneTable& planes;
  Rows rows;
  int chunks;  // of a row; 0: nothing is read
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

  // Chunks at, at + step, ... of the range; the same `at` for both.
  template <int kCount>
  __device__ void load(int at, int4 (&chunk)[kCount]) const {
    if (at >= total) return;
    At a = from(at);
#pragma unroll
    for (int k = 0; k < kCount; k++, advance(a)) {
      if (a.at < total) chunk[k] = load_chunk(planes.on_host(rows.host_row(a.row), a.chunk));
    }
  }
  template <int kCount>
  __device__ void store(int at, const int4 (&chunk)[kCount]) const {
    if (at >= total) return;
    At a = from(at);
#pragma unroll
    for (int k = 0; k < kCount; k++, advance(a)) {
      if (a.at < total) store_chunk(planes.on_device(rows.device_row(a.row), a.chunk), chunk[k]);
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
