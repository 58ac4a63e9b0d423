// recur, recur_net, recur_lstm and their backwards on CUDA: what a device can serve, how the weight is laid out, and the launch.
#include <torch/library.h>

#include <string>

#include "../common/lstm_operators.h"
#include "../common/recurrence_operators.h"
#include "glue.h"
#include "kernels/recurrence_launch.h"

namespace fwp::gpu {
namespace {

// Why this device cannot serve matrices of this width, or an empty text. Blocks have 19 kB of shared memory at most
// (docs/kernels.md), which every device has that is not too old.
std::string refusal_of(const char* op, int64_t device, int64_t d) {
  if (d <= widest_recurrence) return refusal(op, device, 0);
  return "d is " + std::to_string(d) + ", expected at most " + std::to_string(widest_recurrence) +
         " on CUDA, where the matrices stay in registers";
}

struct Recurrences : CudaFloats {
  // (H, 3 d + 1, d): the lanes of a warp, one a row of the state, read neighbours.
  static Tensor layout(const Tensor& weight) { return weight.transpose(1, 2).contiguous(); }

  template <class Describe>
  static void run(const char* op, RecurrenceKernel kernel, const Tensor& x, const Describe& describe) {
    start(op, launch_recurrence, kernel, x, describe);
  }
  template <class Describe>
  static void run(const char* op, LstmKernel kernel, const Tensor& x, const Describe& describe) {
    start(op, launch_lstm, kernel, x, describe);
  }

  template <class Kernel, class Call, class Describe>
  static void start(const char* op, const char* (*kernels)(Kernel, const Call&, void*), Kernel kernel, const Tensor& x,
                    const Describe& describe) {
    Call call{};
    describe(call);
    const std::string reason = refusal_of(op, x.get_device(), call.d);
    TORCH_CHECK_VALUE(reason.empty(), op, ": ", reason);
    const char* error = kernels(kernel, call, c10::cuda::getCurrentCUDAStream().stream());
    TORCH_CHECK(error == nullptr, op, ": ", error);
  }
};

std::string cuda_recurrence_refusal(int64_t device, int64_t d) {
  return refusal_of("fwp::cuda_recurrence_refusal", device, d);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fwp, m) {
  m.def("cuda_recurrence_refusal(int device, int d) -> str", &cuda_recurrence_refusal);
}
TORCH_LIBRARY_IMPL(fwp, CUDA, m) {
  m.impl("recur", &recur<Recurrences>);
  m.impl("recur_backward", &recur_backward<Recurrences>);
  m.impl("recur_net", &recur_net<Recurrences>);
  m.impl("recur_net_backward", &recur_net_backward<Recurrences>);
  m.impl("recur_lstm", &recur_lstm<Recurrences>);
  m.impl("recur_lstm_backward", &recur_lstm_backward<Recurrences>);
}

}  // namespace fwp::gpu
