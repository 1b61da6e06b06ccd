// Byte layouts shared by the kernels. The Python side of the same facts is sglang_hisparse/tier/layout.py.
//
// Ids.   slot = page * 64 + offset                    (SGLang's logical index)
//        device row = device_page * 64 + offset,  host row = host_page * 64 + offset
// Rows.  A plane is one buffer of one layer; a device row is one token's bytes in it. Rows are opaque to the
//        kernels, which only need them to be whole 16-byte chunks. The row formats of stock SGLang 0.5.23:
//
//        MLA, bf16: 1,152 bytes           MLA, fp8 (DSA): 656 bytes         MHA/GQA: one plane for K, one for
//        V
//          0    512 bf16 latent             0    512 fp8 e4m3 latent          0  heads x head_dim values of
//          one 1024  64 bf16 rotary key         512    4 fp32 scales, one a          token, head after head
//                                                 128 latent values
//                                           528   64 bf16 rotary key
//
// Host.  A host row has the same bytes as the device row. Rows of a plane are `host_pitch` bytes apart: in a
//        server row_bytes, so that a page is one piece on both sides; more where rows of several planes lie
//        side by side.
#pragma once

#include <cstdint>

namespace hisparse {

constexpr int kPage = 64;     // slots of a page
constexpr int kNothing = -1;  // page_map value of a page that is nowhere; any table entry that is not set
constexpr int kChunk = 16;    // bytes of one access

constexpr int kMlaBf16Row = 512 * 2 + 64 * 2;
constexpr int kMlaFp8Row = 512 * 1 + 4 * 4 + 64 * 2;
static_assert(kMlaBf16Row == 1152 && kMlaBf16Row % kChunk == 0);
static_assert(kMlaFp8Row == 656 && kMlaFp8Row % kChunk == 0);

// One row of Group.plane_table.
struct GroupPlane {
  int64_t device;  // address of device row 0
  int64_t host;    // address of host row 0
  int64_t row_bytes;
  int64_t host_pitch;
};
static_assert(sizeof(GroupPlane) == 4 * sizeof(int64_t));

// Read once, keep out of L1: host rows arrive over PCIe and are not read twice.
__device__ __forceinline__ int4 load_chunk(const void* address) {
  int4 chunk;
  asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(chunk.x), "=r"(chunk.y), "=r"(chunk.z), "=r"(chunk.w)
               : "l"(address));
  return chunk;
}

__device__ __forceinline__ void store_chunk(void* address, int4 chunk) {
  *static_cast<int4*>(address) = chunk;
}

}  // namespace hisparse
