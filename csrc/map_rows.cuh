// Entries of the page map's look-ups and of the tables' changes for SGLang's load_jit. Arguments:
// sglang_hisparse/kernels/map_rows.py, sglang_hisparse/kernels/set_tables.py.
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/utils.h>

#include <sgl_kernel/utils.cuh>

#include <algorithm>
#include <cstdint>

#include "hisparse/map_rows.cuh"
#include "hisparse/set_tables.cuh"

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

// `words`, int32 in CPU memory: the entries' places, those of the page map first, then their values.
struct SetEntries {
  static void run(tvm::ffi::TensorView page_map, tvm::ffi::TensorView hot_index, tvm::ffi::TensorView words,
                  int64_t of_pages) {
    using namespace sglang::host;
    auto pages = SymbolicSize{"pages"}, requests = SymbolicSize{"requests"}, size = SymbolicSize{"words"};
    auto device = SymbolicDevice{};
    TensorMatcher({pages}).with_dtype<int32_t>().with_device<kDLCUDA>(device).verify(page_map);
    TensorMatcher({requests}).with_dtype<int32_t>().with_device<kDLCUDA>(device).verify(hot_index);
    TensorMatcher({size}).with_dtype<int32_t>().with_device<kDLCPU>().verify(words);
    const int64_t count = size.unwrap() / 2;
    CHECK_HOST(size.unwrap() == 2 * count && of_pages >= 0 && of_pages <= count)
        << size.unwrap() << " words are not the places and values of " << of_pages << " pages and more";
    const auto at = static_cast<const int32_t*>(words.data_ptr());
    for (int64_t i = 0; i < count; i++) {
      const int64_t end = i < of_pages ? pages.unwrap() : requests.unwrap();
      CHECK_HOST(at[i] >= 0 && at[i] < end) << "entry " << at[i] << " of a table of " << end;
    }
    EntryParams params;
    params.page_map = static_cast<int32_t*>(page_map.data_ptr());
    params.hot_index = static_cast<int32_t*>(hot_index.data_ptr());
    for (int64_t begin = 0; begin < count; begin += kMostEntries) {
      params.count = int32_t(std::min<int64_t>(count - begin, kMostEntries));
      params.pages = int32_t(std::clamp<int64_t>(of_pages - begin, 0, params.count));
      std::copy_n(at + begin, params.count, params.at);
      std::copy_n(at + count + begin, params.count, params.value);
      LaunchKernel(1, kSetThreads, device.unwrap())(set_entries_kernel, params);
    }
  }
};

// `pages`, int32 in CPU memory: the device pages of `table` now. `first`: a row.
struct SetLease {
  static void run(tvm::ffi::TensorView hot_rows, tvm::ffi::TensorView hot_len, tvm::ffi::TensorView hot_slot,
                  tvm::ffi::TensorView hot_stamp, tvm::ffi::TensorView clock, int64_t table, int64_t first,
                  tvm::ffi::TensorView pages) {
    using namespace sglang::host;
    auto tables = SymbolicSize{"tables"}, hot = SymbolicSize{"hot rows"}, groups = SymbolicSize{"groups"};
    auto count = SymbolicSize{"pages"};
    auto device = SymbolicDevice{};
    TensorMatcher({tables, hot}).with_dtype<int32_t>().with_device<kDLCUDA>(device).verify(hot_rows);
    TensorMatcher({tables}).with_dtype<int32_t>().with_device<kDLCUDA>(device).verify(hot_len);
    TensorMatcher({groups, tables, hot})
        .with_dtype<int32_t>()
        .with_device<kDLCUDA>(device)
        .verify(hot_slot)
        .verify(hot_stamp);
    TensorMatcher({groups, tables}).with_dtype<int32_t>().with_device<kDLCUDA>(device).verify(clock);
    TensorMatcher({count}).with_dtype<int32_t>().with_device<kDLCPU>().verify(pages);
    const int64_t rows = hot.unwrap(), n = count.unwrap();
    CHECK_HOST(table >= 0 && table < tables.unwrap()) << "table " << table << " of " << tables.unwrap();
    CHECK_HOST(n <= kMostLeasePages && n * 64 <= rows)
        << n << " pages in a table of " << rows << " rows; at most " << kMostLeasePages << " fit a launch";
    CHECK_HOST(first >= 0) << "first row " << first;
    if (rows == 0 || groups.unwrap() == 0) return;
    LeaseParams params;
    params.hot_rows = static_cast<int32_t*>(hot_rows.data_ptr()) + table * rows;
    params.hot_len = static_cast<int32_t*>(hot_len.data_ptr()) + table;
    params.hot_slot = static_cast<int32_t*>(hot_slot.data_ptr()) + table * rows;
    params.hot_stamp = static_cast<int32_t*>(hot_stamp.data_ptr()) + table * rows;
    params.clock = static_cast<int32_t*>(clock.data_ptr()) + table;
    params.slot_stride = tables.unwrap() * rows;
    params.clock_stride = tables.unwrap();
    params.hot_rows_most = int32_t(rows);
    params.first = int32_t(std::min(first, rows));
    params.pages = int32_t(n);
    std::copy_n(static_cast<const int32_t*>(pages.data_ptr()), n, params.page);
    const dim3 blocks(uint32_t((rows + kSetThreads - 1) / kSetThreads), uint32_t(groups.unwrap()));
    LaunchKernel(blocks, kSetThreads, device.unwrap())(set_lease_kernel, params);
  }
};

}  // namespace hisparse
