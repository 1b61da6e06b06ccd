// Entry of the page copy for SGLang's load_jit. Arguments: sglang_hisparse/kernels/pages.py.
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/utils.h>

#include <sgl_kernel/utils.cuh>

#include <algorithm>
#include <cstdint>

#include "hisparse/copy_pages.cuh"

namespace hisparse {

constexpr int64_t kSlicesOfABlock = 4;  // at least, where pages can be cut that far
constexpr int64_t kChunksOfARow = 64;   // about; the host does not read the planes

struct CopyPages {
  static void run(tvm::ffi::TensorView planes, tvm::ffi::TensorView groups, tvm::ffi::TensorView pairs,
                  bool to_host, int64_t blocks, int64_t threads) {
    using namespace sglang::host;
    auto plane_count = SymbolicSize{"planes"}, group_count = SymbolicSize{"groups"};
    auto pair_count = SymbolicSize{"pairs"};
    auto device = SymbolicDevice{};
    auto page = SymbolicDType{};
    TensorMatcher({plane_count, 4}).with_dtype<int64_t>().with_device<kDLCUDA>(device).verify(planes);
    TensorMatcher({group_count, 4}).with_dtype<int64_t>().with_device<kDLCUDA>(device).verify(groups);
    TensorMatcher({pair_count, 2})
        .with_dtype<int32_t, int64_t>(page)
        .with_device<kDLCUDA>(device)
        .verify(pairs);
    CHECK_HOST(blocks > 0) << "a copy needs at least one thread block, got " << blocks;
    CHECK_HOST(threads >= 32 && threads <= kMostCopyThreads && threads % 32 == 0)
        << "a block has whole warps, at most " << kMostCopyThreads << " threads; got " << threads;
    const int64_t whole = group_count.unwrap() * pair_count.unwrap();
    CHECK_HOST(whole <= INT32_MAX / kPage) << pair_count.unwrap() << " pages of " << group_count.unwrap()
                                           << " groups are more than one launch can copy";
    if (whole == 0) return;
    int64_t slices = 1;  // of a page: all blocks get about as much, all threads something
    while (whole * slices < kSlicesOfABlock * blocks && kPage / (2 * slices) * kChunksOfARow >= threads)
      slices *= 2;
    const int64_t work = whole * slices;
    const size_t smem = sizeof(PlaneTable) * size_t(group_count.unwrap());
    const size_t most = 48 * 1024;
    CHECK_HOST(smem <= most) << group_count.unwrap() << " row groups are more than the "
                             << most / sizeof(PlaneTable) << " that one launch can copy";
    const CopyParams params{
        .planes = static_cast<const GroupPlane*>(planes.data_ptr()),
        .groups = static_cast<const GroupRange*>(groups.data_ptr()),
        .pairs = pairs.data_ptr(),
        .group_count = static_cast<uint32_t>(group_count.unwrap()),
        .work = static_cast<uint32_t>(work),
        .slices = static_cast<uint32_t>(slices),
        .wide_pages = page.is_type<int64_t>(),
    };
    const auto kernel = to_host ? copy_pages_kernel<true> : copy_pages_kernel<false>;
    LaunchKernel(static_cast<uint32_t>(std::min(work, blocks)), static_cast<uint32_t>(threads),
                 device.unwrap(), smem)(kernel, params);
  }
};

}  // namespace hisparse
