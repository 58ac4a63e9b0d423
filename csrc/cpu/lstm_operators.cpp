// recur_lstm and its backward on the CPU: the choice of kernels by type, and one task for each batch row and head.
#include "../common/lstm_operators.h"

#include <ATen/Dispatch.h>
#include <torch/library.h>

#include "capability.h"
#include "glue.h"

namespace fwp {
namespace {

struct Lstms : Cpu {
  static void check(const char* op, const char* name, at::ScalarType type) { check_type(op, name, type); }

  template <class Describe>
  static void run(const char*, LstmKernel kernel, const Tensor& x, const Describe& describe) {
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "fwp::recur_lstm", [&] {
      const RecurrenceKernels<scalar_t>& kernels = chosen_recurrence_kernels<scalar_t>();
      LstmCall<scalar_t> c{};
      describe(c);
      const auto head = kernel == LstmKernel::forward ? kernels.lstm_forward : kernels.lstm_backward;
      for_each_head<scalar_t>(c, kernels.lstm_scratch(c), head);
    });
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(fwp, CPU, m) {
  m.impl("recur_lstm", &recur_lstm<Lstms>);
  m.impl("recur_lstm_backward", &recur_lstm_backward<Lstms>);
}

}  // namespace fwp
