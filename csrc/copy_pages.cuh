// Entry of the page copy for SGLang's load_jit. Arguments: sglang_hisparse/kernels/pages.py.
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/utils.h>

#include <sgl_kernel/utils.cuh>

#include <algorithm>
#include <cstdint>

#include "hisparse/copy_pages.cuh"

namespace hisparse {

struct CopyPages {
  static void run(tvm::ffi::TensorView planes, tvm::ffi::TensorView pairs, bool to_host, int64_t blocks) {
    using namespace sglang::host;
    auto plane_count = SymbolicSize{"planes"}, pair_count = SymbolicSize{"pairs"};
    auto device = SymbolicDevice{};
    auto page = SymbolicDType{};
    TensorMatcher({plane_count, 4}).with_dtype<int64_t>().with_device<kDLCUDA>(device).verify(planes);
    TensorMatcher({pair_count, 2})
        .with_dtype<int32_t, int64_t>(page)
        .with_device<kDLCUDA>(device)
        .verify(pairs);
    CHECK_HOST(blocks > 0) << "a copy needs at least one thread block, got " << blocks;
    const int64_t work = plane_count.unwrap() * pair_count.unwrap();
    CHECK_HOST(work <= INT32_MAX) << pair_count.unwrap() << " pages of " << plane_count.unwrap()
                                  << " planes are more than one launch can copy";
    if (work == 0) return;
    const CopyParams params{
        .planes = static_cast<const CopyPlane*>(planes.data_ptr()),
        .pairs = pairs.data_ptr(),
        .plane_count = static_cast<uint32_t>(plane_count.unwrap()),
        .work = static_cast<uint32_t>(work),
        .to_host = to_host,
    };
    const auto kernel = page.is_type<int32_t>() ? copy_pages_kernel<int32_t> : copy_pages_kernel<int64_t>;
    LaunchKernel(static_cast<uint32_t>(std::min(work, blocks)), kCopyThreads, device.unwrap())(kernel,
                                                                                               params);
  }
};

}  // namespace hisparse
