#include "../row_functions.cuh"

namespace fwp::gpu {
namespace {

template <class F> const char* launch_rows(const RowFunctionCall& c, void* stream) {
  return launch(c.backward ? row_backward_kernel<F> : row_kernel<F>, c.blocks, 32 * row_warps, 0,
                static_cast<Stream>(stream), c);
}

}  // namespace

const char* launch_row_function(const RowFunctionCall& c, void* stream) {
  switch (c.function) {
    case RowFunction::softmax_pair:
      return launch_rows<SoftmaxPair>(c, stream);
    case RowFunction::to_length_one:
      return launch_rows<ToLengthOne>(c, stream);
    case RowFunction::elu_to_length_one:
      return launch_rows<EluToLengthOne>(c, stream);
    case RowFunction::to_rms_one:
      return launch_rows<ToRmsOne>(c, stream);
  }
  return "unknown function of rows";
}

}  // namespace fwp::gpu
