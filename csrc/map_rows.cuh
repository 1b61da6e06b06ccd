// Entries of the page map's look-ups for SGLang's load_jit. Arguments: sglang_hisparse/kernels/map_rows.py.
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/utils.h>

#include <sgl_kernel/utils.cuh>

#include <cstdint>

#include "hisparse/map_rows.cuh"

namespace hisparse {

inline uint32_t map_blocks(int64_t count) {
  CHECK_HOST(count <= int64_t(INT32_MAX) * kMapThreads)
      << count << " entries are more than one launch can map";
  return static_cast<uint32_t>((count + kMapThreads - 1) / kMapThreads);
}

struct MapRows {
  static void run(tvm::ffi::TensorView page_map, tvm::ffi::TensorView slots, tvm::ffi::TensorView rows) {
    using namespace sglang::host;
    auto pages = SymbolicSize{"pages"}, count = SymbolicSize{"slots"};
    auto device = SymbolicDevice{};
    auto slot = SymbolicDType{};
    TensorMatcher({pages}).with_dtype<int32_t>().with_device<kDLCUDA>(device).verify(page_map);
    TensorMatcher({count})
        .with_dtype<int32_t, int64_t>(slot)
        .with_device<kDLCUDA>(device)
        .verify(slots)
        .verify(rows);
    if (count.unwrap() == 0) return;
    const auto* map = static_cast<const int32_t*>(page_map.data_ptr());
    LaunchKernel launch(map_blocks(count.unwrap()), kMapThreads, device.unwrap());
    if (slot.is_type<int64_t>()) {
      launch(map_rows_kernel<int64_t>, map, pages.unwrap(), static_cast<const int64_t*>(slots.data_ptr()),
             static_cast<int64_t*>(rows.data_ptr()), count.unwrap());
    } else {
      launch(map_rows_kernel<int32_t>, map, pages.unwrap(), static_cast<const int32_t*>(slots.data_ptr()),
             static_cast<int32_t*>(rows.data_ptr()), count.unwrap());
    }
  }
};

struct MapPages {
  static void run(tvm::ffi::TensorView page_map, tvm::ffi::TensorView table, tvm::ffi::TensorView mapped) {
    using namespace sglang::host;
    auto pages = SymbolicSize{"pages"}, count = SymbolicSize{"entries"};
    auto device = SymbolicDevice{};
    TensorMatcher({pages}).with_dtype<int32_t>().with_device<kDLCUDA>(device).verify(page_map);
    TensorMatcher({count}).with_dtype<int32_t>().with_device<kDLCUDA>(device).verify(table).verify(mapped);
    if (count.unwrap() == 0) return;
    LaunchKernel(map_blocks(count.unwrap()), kMapThreads, device.unwrap())(
        map_pages_kernel, static_cast<const int32_t*>(page_map.data_ptr()), pages.unwrap(),
        static_cast<const int32_t*>(table.data_ptr()), static_cast<int32_t*>(mapped.data_ptr()),
        count.unwrap());
  }
};

}  // namespace hisparse
