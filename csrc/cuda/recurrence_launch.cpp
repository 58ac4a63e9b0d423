// recur, recur_lstm and their backwards on CUDA: what a device can serve, and the launch.
#include <torch/library.h>

#include <string>

#include "../common/recurrence_operators.h"
#include "glue.h"
#include "kernels/recurrences/recurrence_launch.h"

namespace fwp::gpu {
namespace {

// Why this device cannot serve matrices of this width, or an empty text. Blocks have 19 kB of shared memory at most,
// which every device has that is not too old.
std::string refusal_of(const char* op, int64_t device, int64_t d) {
  if (d <= widest_recurrence) return refusal(op, device, 0);
  return "d is " + std::to_string(d) + ", expected at most " + std::to_string(widest_recurrence) +
         " on CUDA, where the matrices stay in registers";
}

struct Recurrences {
  template <class Describe>
  static void run(const char* op, RecurrenceKernel kernel, const Tensor& k, const Describe& describe) {
    start(op, launch_recurrence, kernel, k, describe);
  }
  template <class Describe>
  static void run_lstm(const char* op, RecurrenceKernel kernel, const Tensor& k, const Describe& describe) {
    start(op, launch_lstm, kernel, k, describe);
  }

  template <class Call, class Describe>
  static void start(const char* op, const char* (*kernels)(RecurrenceKernel, const Call&, void*),
                    RecurrenceKernel kernel, const Tensor& k, const Describe& describe) {
    check_float(op, "k", k.scalar_type());
    const c10::cuda::CUDAGuard guard(k.device());
    Call call{};
    Fields fields(op, k);
    describe(fields, call);
    if (!fields.ready()) return;
    const std::string reason = refusal_of(op, k.get_device(), call.d);
    TORCH_CHECK_VALUE(reason.empty(), op, ": ", reason);
    const char* error = kernels(kernel, call, c10::cuda::getCurrentCUDAStream().stream());
    TORCH_CHECK(error == nullptr, op, ": ", error);
  }
};

std::string cuda_recurrence_refusal(int64_t device, int64_t d) {
  return refusal_of("fwp::cuda_recurrence_refusal", device, d);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fwp, m) { m.def("cuda_recurrence_refusal(int device, int d) -> str", &cuda_recurrence_refusal); }
TORCH_LIBRARY_IMPL(fwp, CUDA, m) {
  m.impl("recur", &recur<Recurrences>);
  m.impl("recur_backward", &recur_backward<Recurrences>);
  m.impl("recur_lstm", &recur_lstm<Recurrences>);
  m.impl("recur_lstm_backward", &recur_lstm_backward<Recurrences>);
}

}  // namespace fwp::gpu
