// Entry of the resolve kernel for SGLang's load_jit. Arguments: sglang_hisparse/kernels/resolve.py.
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/utils.h>

#include <sgl_kernel/runtime.cuh>
#include <sgl_kernel/utils.cuh>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "hisparse/resolve.cuh"

namespace hisparse {

struct Resolve {
  static void run(tvm::ffi::TensorView page_map, tvm::ffi::TensorView hot_index,
                  tvm::ffi::TensorView hot_rows, tvm::ffi::TensorView hot_len, tvm::ffi::TensorView hot_slot,
                  tvm::ffi::TensorView hot_stamp, tvm::ffi::TensorView clock, int64_t group,
                  tvm::ffi::TensorView planes, int64_t host, int64_t host_row_bytes,
                  tvm::ffi::TensorView selection, tvm::ffi::TensorView request, int64_t rows_per_request,
                  tvm::ffi::TensorView out, tvm::ffi::TensorView stats) {
    using namespace sglang::host;
    auto pages = SymbolicSize{"pages"}, requests = SymbolicSize{"requests"}, groups = SymbolicSize{"groups"};
    auto tables = SymbolicSize{"tables"}, hot = SymbolicSize{"hot rows"},
         plane_count = SymbolicSize{"planes"};
    auto batch = SymbolicSize{"batch"}, rows = SymbolicSize{"selection rows"}, width = SymbolicSize{"width"};
    auto counters = SymbolicSize{"stats"};
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
    TensorMatcher({plane_count, 4}).with_dtype<int64_t>().with_device<kDLCUDA>(device).verify(planes);
    TensorMatcher({rows, width})
        .with_dtype<int32_t>()
        .with_device<kDLCUDA>(device)
        .verify(selection)
        .verify(out);
    TensorMatcher({batch}).with_dtype<int32_t, int64_t>(id).with_device<kDLCUDA>(device).verify(request);
    TensorMatcher({counters}).with_dtype<int64_t>().with_device<kDLCUDA>(device).verify(stats);
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
    CHECK_HOST(host != 0 && host_row_bytes > 0 && host_row_bytes % kChunk == 0)
        << "host rows at " << host << " of " << host_row_bytes << " bytes";
    CHECK_HOST(counters.unwrap() == 0 || counters.unwrap() == 4) << "stats must have 4 counters, or none";
    if (batch.unwrap() == 0 || entries == 0) return;

    const int cell_bits = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(2 * entries - 1, 1)));
    const size_t smem = Workspace::bytes(static_cast<int>(entries), cell_bits);
    const size_t most = runtime::get_max_smem_per_block(device.unwrap().device_id);
    CHECK_HOST(smem <= most) << "resolving " << entries << " entries a request takes " << smem
                             << " bytes of shared memory and this GPU has " << most
                             << "; lower top-k or the number of speculative tokens";
    runtime::set_max_dynamic_smem_per_device<resolve_kernel<int32_t>>(device.unwrap(), most);
    runtime::set_max_dynamic_smem_per_device<resolve_kernel<int64_t>>(device.unwrap(), most);
    const auto kernel = id.is_type<int32_t>() ? resolve_kernel<int32_t> : resolve_kernel<int64_t>;

    const int64_t table = group * tables.unwrap();
    const ResolveParams params{
        .page_map = static_cast<const int32_t*>(page_map.data_ptr()),
        .pages = static_cast<uint32_t>(pages.unwrap()),
        .hot_stride = static_cast<int32_t>(hot_stride),
        .hot_index = static_cast<const int32_t*>(hot_index.data_ptr()),
        .hot_rows = static_cast<const int32_t*>(hot_rows.data_ptr()),
        .hot_len = static_cast<const int32_t*>(hot_len.data_ptr()),
        .hot_slot = static_cast<int32_t*>(hot_slot.data_ptr()) + table * hot_stride,
        .hot_stamp = static_cast<int32_t*>(hot_stamp.data_ptr()) + table * hot_stride,
        .clock = static_cast<int32_t*>(clock.data_ptr()) + table,
        .planes = static_cast<const GroupPlane*>(planes.data_ptr()),
        .host = reinterpret_cast<const uint8_t*>(host),
        .host_row_bytes = host_row_bytes,
        .selection = static_cast<const int32_t*>(selection.data_ptr()),
        .request = request.data_ptr(),
        .out = static_cast<int32_t*>(out.data_ptr()),
        .stats = counters.unwrap() == 4 ? static_cast<unsigned long long*>(stats.data_ptr()) : nullptr,
        .plane_count = static_cast<int32_t>(plane_count.unwrap()),
        .entries = static_cast<int32_t>(entries),
        .cell_bits = cell_bits,
    };
    LaunchKernel(static_cast<uint32_t>(batch.unwrap()), kThreads, device.unwrap(), smem)(kernel, params);
  }
};

}  // namespace hisparse
