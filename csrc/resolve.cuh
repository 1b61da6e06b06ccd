// Entries of the resolve kernels for SGLang's load_jit. Arguments: sglang_hisparse/kernels/resolve.py.
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/utils.h>

#include <sgl_kernel/runtime.cuh>
#include <sgl_kernel/utils.cuh>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "hisparse/listed.cuh"
#include "hisparse/resolve.cuh"

namespace hisparse {

// A group's plane table, an int64 [planes, 4] in CPU memory.
inline PlaneTable plane_table(tvm::ffi::TensorView planes) {
  using namespace sglang::host;
  auto count = SymbolicSize{"planes"};
  TensorMatcher({count, 4}).with_dtype<int64_t>().with_device<kDLCPU>().verify(planes);
  CHECK_HOST(count.unwrap() <= kMaxPlanes)
      << count.unwrap() << " planes; the kernels take at most " << kMaxPlanes << " at once";
  PlaneTable table;
  table.fill(static_cast<const GroupPlane*>(planes.data_ptr()), int(count.unwrap()));
  return table;
}

struct Resolve {
  static void run(tvm::ffi::TensorView page_map, tvm::ffi::TensorView hot_index,
                  tvm::ffi::TensorView hot_rows, tvm::ffi::TensorView hot_len, tvm::ffi::TensorView hot_slot,
                  tvm::ffi::TensorView hot_stamp, tvm::ffi::TensorView clock, int64_t group,
                  tvm::ffi::TensorView planes, bool reads, tvm::ffi::TensorView selection,
                  tvm::ffi::TensorView request, int64_t rows_per_request, tvm::ffi::TensorView out,
                  tvm::ffi::TensorView stats, tvm::ffi::TensorView heat, tvm::ffi::TensorView miss_rows,
                  tvm::ffi::TensorView miss_count, int64_t blocks) {
    using namespace sglang::host;
    auto pages = SymbolicSize{"pages"}, requests = SymbolicSize{"requests"}, groups = SymbolicSize{"groups"};
    auto tables = SymbolicSize{"tables"}, hot = SymbolicSize{"hot rows"};
    auto batch = SymbolicSize{"batch"}, rows = SymbolicSize{"selection rows"}, width = SymbolicSize{"width"};
    auto counters = SymbolicSize{"stats"}, heated = SymbolicSize{"heat"};
    auto listed = SymbolicSize{"listed requests"}, listed_rows = SymbolicSize{"listed rows"};
    auto device = SymbolicDevice{};
    auto id = SymbolicDType{};
    TensorMatcher({pages}).with_dtype<int32_t>().with_device<kDLCUDA>(device).verify(page_map);
    TensorMatcher({requests}).with_dtype<int32_t>().with_device<kDLCUDA>(device).verify(hot_index);
    TensorMatcher({tables, hot}).with_dtype<int32_t>().with_device<kDLCUDA>(device).verify(hot_rows);
    TensorMatcher({tables}).with_dtype<int32_t>().with_device<kDLCUDA>(device).verify(hot_len);
    TensorMatcher({groups, tables, hot})
        .with_dtype<int32_t>()
        .with_device<kDLCUDA>(device)
        .verify(hot_slot)
        .verify(hot_stamp);
    TensorMatcher({groups, tables}).with_dtype<int32_t>().with_device<kDLCUDA>(device).verify(clock);
    TensorMatcher({rows, width})
        .with_dtype<int32_t>()
        .with_device<kDLCUDA>(device)
        .verify(selection)
        .verify(out);
    TensorMatcher({batch}).with_dtype<int32_t, int64_t>(id).with_device<kDLCUDA>(device).verify(request);
    TensorMatcher({counters}).with_dtype<int64_t>().with_device<kDLCUDA>(device).verify(stats);
    TensorMatcher({heated}).with_dtype<int32_t>().with_device<kDLCUDA>(device).verify(heat);
    TensorMatcher({listed, listed_rows, 2})
        .with_dtype<int32_t>()
        .with_device<kDLCUDA>(device)
        .verify(miss_rows);
    TensorMatcher({listed}).with_dtype<int32_t>().with_device<kDLCUDA>(device).verify(miss_count);
    const int64_t q = rows_per_request, entries = q * width.unwrap(), hot_stride = hot.unwrap();
    CHECK_HOST(q > 0 && rows.unwrap() == batch.unwrap() * q)
        << "selection has " << rows.unwrap() << " rows, which is not " << batch.unwrap() << " requests of "
        << q;
    CHECK_HOST(entries <= kMaxEntries)
        << "a request selects " << entries << " entries in one step (" << q << " rows of " << width.unwrap()
        << "); the kernel takes at most " << kMaxEntries;
    CHECK_HOST(hot_stride <= kMaxHotRows)
        << "hot tables have " << hot_stride << " rows a request; the kernel takes at most " << kMaxHotRows;
    CHECK_HOST(group >= 0 && group < groups.unwrap())
        << "group " << group << " of hot tables for " << groups.unwrap() << " groups";
    CHECK_HOST(selection.data_ptr() != out.data_ptr() || rows.unwrap() == 0)
        << "out must be other memory than the selection: several blocks read it";
    CHECK_HOST(counters.unwrap() == 0 || counters.unwrap() == 4) << "stats must have 4 counters, or none";
    CHECK_HOST(heated.unwrap() == 0 || heated.unwrap() == pages.unwrap())
        << "heat has " << heated.unwrap() << " pages, the page map " << pages.unwrap();
    CHECK_HOST(listed.unwrap() == 0 || (listed.unwrap() >= batch.unwrap() && listed_rows.unwrap() >= entries))
        << "the list of misses holds " << listed.unwrap() << " requests of " << listed_rows.unwrap()
        << " rows; " << batch.unwrap() << " requests of " << entries << " entries need more";
    CHECK_HOST(blocks >= 1 && blocks <= 8 && std::has_single_bit(static_cast<uint64_t>(blocks)))
        << "a request is served by 1, 2, 4 or 8 blocks, not by " << blocks;
    if (batch.unwrap() == 0 || entries == 0) return;

    // An eighth full where that fits into shared memory, half full at most.
    const size_t most = runtime::get_max_smem_per_block(device.unwrap().device_id);
    const auto bits_for = [](int64_t cells) {
      return std::bit_width(uint64_t(std::max<int64_t>(cells - 1, 3)));
    };
    int cell_bits = bits_for(8 * entries);
    const auto bytes = [&] { return Workspace::bytes(int(entries), cell_bits, int(hot_stride)); };
    while (bytes() > most && cell_bits > bits_for(2 * entries)) cell_bits--;
    const size_t smem = bytes();
    CHECK_HOST(smem <= most) << "resolving " << entries << " entries with " << hot_stride
                             << " hot rows takes " << smem << " bytes of shared memory and this GPU has "
                             << most << "; lower top-k, hot_rows or the number of speculative tokens";
    runtime::set_max_dynamic_smem_per_device<resolve_kernel<1>>(device.unwrap(), most);
    runtime::set_max_dynamic_smem_per_device<resolve_kernel<2>>(device.unwrap(), most);
    runtime::set_max_dynamic_smem_per_device<resolve_kernel<4>>(device.unwrap(), most);
    runtime::set_max_dynamic_smem_per_device<resolve_kernel<8>>(device.unwrap(), most);
    const auto kernel = entries <= kThreads       ? resolve_kernel<1>
                        : entries <= 2 * kThreads ? resolve_kernel<2>
                        : entries <= 4 * kThreads ? resolve_kernel<4>
                                                  : resolve_kernel<8>;

    const int64_t table = group * tables.unwrap();
    const bool lists = listed.unwrap() > 0;
    const ResolveParams params{
        .page_map = static_cast<const int32_t*>(page_map.data_ptr()),
        .hot_index = static_cast<const int32_t*>(hot_index.data_ptr()),
        .hot_rows = static_cast<const int32_t*>(hot_rows.data_ptr()),
        .hot_len = static_cast<const int32_t*>(hot_len.data_ptr()),
        .hot_slot = static_cast<int32_t*>(hot_slot.data_ptr()) + table * hot_stride,
        .hot_stamp = static_cast<int32_t*>(hot_stamp.data_ptr()) + table * hot_stride,
        .clock = static_cast<int32_t*>(clock.data_ptr()) + table,
        .selection = static_cast<const int32_t*>(selection.data_ptr()),
        .request = request.data_ptr(),
        .out = static_cast<int32_t*>(out.data_ptr()),
        .stats = counters.unwrap() == 4 ? static_cast<unsigned long long*>(stats.data_ptr()) : nullptr,
        .heat = heated.unwrap() > 0 ? static_cast<int32_t*>(heat.data_ptr()) : nullptr,
        .miss_rows = lists ? static_cast<int2*>(miss_rows.data_ptr()) : nullptr,
        .miss_count = lists ? static_cast<int32_t*>(miss_count.data_ptr()) : nullptr,
        .miss_stride = int32_t(listed_rows.unwrap()),
        .pages = static_cast<uint32_t>(pages.unwrap()),
        .hot_stride = static_cast<int32_t>(hot_stride),
        .entries = static_cast<int32_t>(entries),
        .cell_bits = cell_bits,
        .wide_request = id.is_type<int64_t>(),
        .reads = reads,
        .planes = plane_table(planes),
    };
    LaunchKernel launch(static_cast<uint32_t>(batch.unwrap() * blocks), kThreads, device.unwrap(), smem);
    launch.enable_pdl();
    if (blocks > 1) launch.enable_cluster(static_cast<uint32_t>(blocks));
    launch(kernel, params);
  }
};

struct FetchListed {
  static void run(tvm::ffi::TensorView planes, tvm::ffi::TensorView miss_rows,
                  tvm::ffi::TensorView miss_count, int64_t batch, int64_t blocks, int64_t threads,
                  bool paired, bool follows_kernel) {
    using namespace sglang::host;
    auto listed = SymbolicSize{"listed requests"}, listed_rows = SymbolicSize{"listed rows"};
    auto device = SymbolicDevice{};
    TensorMatcher({listed, listed_rows, 2})
        .with_dtype<int32_t>()
        .with_device<kDLCUDA>(device)
        .verify(miss_rows);
    TensorMatcher({listed}).with_dtype<int32_t>().with_device<kDLCUDA>(device).verify(miss_count);
    CHECK_HOST(batch >= 0 && batch <= listed.unwrap())
        << batch << " requests of a list of " << listed.unwrap();
    CHECK_HOST(blocks > 0 && (!paired || blocks % 2 == 0))
        << "a fetch needs thread blocks, in pairs an even number; got " << blocks;
    CHECK_HOST(threads > 0 && threads % 32 == 0 && threads <= kMaxListedThreads)
        << threads << " threads a block; whole warps, at most " << kMaxListedThreads;
    ListedParams params{
        .miss_rows = static_cast<const int2*>(miss_rows.data_ptr()),
        .miss_count = static_cast<const int32_t*>(miss_count.data_ptr()),
        .miss_stride = int32_t(listed_rows.unwrap()),
        .batch = int32_t(batch),
        .planes = plane_table(planes),
    };
    params.set_rows();
    if (batch == 0 || params.planes.chunks == 0) return;
    LaunchKernel launch(static_cast<uint32_t>(blocks), static_cast<uint32_t>(threads), device.unwrap());
    if (paired) launch.enable_cluster({2, 1, 1});
    if (follows_kernel) launch.enable_pdl();
    launch(listed_kernel, params);
  }
};

}  // namespace hisparse
