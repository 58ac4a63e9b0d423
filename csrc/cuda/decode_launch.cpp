// Decoding on CUDA. What the tables name is checked by the kernels: reading it here would wait for the device.
#include <torch/library.h>

#include <string>

#include "../common/decode_operators.h"
#include "glue.h"
#include "kernels/decode_call.h"

namespace fwp::gpu {
namespace {

struct CudaDecoding {
  template <class Describe> static void decode(const Block& block, bool, const Tensor& q, const Describe& describe) {
    run(block, q, start_decode, describe);
  }
  template <class Describe> static void fold(const Block& block, const Tensor& keys, const Describe& describe) {
    run(block, keys, start_fold, describe);
  }

  template <class Kernels, class Describe>
  static void run(const Block& block, const Tensor& x, Kernels kernels, const Describe& describe) {
    const c10::cuda::CUDAGuard guard(x.device());
    check_sizes(block.op, "keys", block.keys.scalar_type(), x.size(3));
    DecodeCall call{};
    Fields fields(block.op, x);
    describe(fields, call);
    call.x_type = type_of(block.op, "keys", block.keys.scalar_type());
    call.type = type_of(block.op, "written", block.written.scalar_type());
    call.states = block.W ? static_cast<int>(block.W->size(0)) : 0;
    if (fields.ready()) start(block.op, kernels, call);
  }
};

// Why this device cannot decode with these sizes, or an empty text. `longest`: positions of a block.
std::string cuda_decode_refusal(int64_t device, int64_t d_key, int64_t d_dot, int64_t longest) {
  DecodeCall call{};
  call.d_key = static_cast<int>(d_key);
  call.d_dot = static_cast<int>(d_dot);
  call.count = static_cast<int>(longest);
  return refusal("fwp::cuda_decode_refusal", device, decode_bytes(call));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fwp, m) {
  m.def("cuda_decode_refusal(int device, int d_key, int d_dot, int longest) -> str", &cuda_decode_refusal);
}
TORCH_LIBRARY_IMPL(fwp, CUDA, m) {
  m.impl("decode", &fwp::decode<CudaDecoding>);
  m.impl("fold", &fwp::fold<CudaDecoding>);
}

}  // namespace fwp::gpu
