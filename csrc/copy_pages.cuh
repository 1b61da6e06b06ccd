// Entry of the page copy for SGLang's load_jit. Arguments: sglang_hisparse/kernels/pages.py.
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/utils.h>

#include <sgl_kernel/utils.cuh>

#include <algorithm>
#include <cstdint>

#include "hisparse/copy_pages.cuh"

namespace hisparse {

template <bool kToHost, typename Page>
struct CopyPages {
  static void run(tvm::ffi::TensorView planes, tvm::ffi::TensorView pairs, int64_t blocks) {
    using namespace sglang::host;
    auto plane_count = SymbolicSize{"planes"}, pair_count = SymbolicSize{"pairs"};
    auto device = SymbolicDevice{};
    TensorMatcher({plane_count, 4}).with_dtype<int64_t>().with_device<kDLCUDA>(device).verify(planes);
    TensorMatcher({pair_count, 2}).with_device<kDLCUDA>(device).with_dtype<Page>().verify(pairs);
    CHECK_HOST(blocks > 0) << "a copy needs at least one thread block, got " << blocks;
    const int64_t work = plane_count.unwrap() * pair_count.unwrap();
    if (work == 0) return;
    const CopyParams params{
        .planes = static_cast<const CopyPlane*>(planes.data_ptr()),
        .pairs = pairs.data_ptr(),
        .plane_count = plane_count.unwrap(),
        .pair_count = pair_count.unwrap(),
    };
    LaunchKernel(static_cast<uint32_t>(std::min(work, blocks)), kCopyThreads, device.unwrap())(
        copy_pages_kernel<kToHost, Page>, params);
  }
};

}  // namespace hisparse
