// recur, recur_net and their backwards on the CPU: the choice of kernels by type, and one task for each batch row and head.
#include "../common/recurrence_operators.h"

#include <ATen/Dispatch.h>
#include <torch/library.h>

#include "capability.h"
#include "glue.h"

namespace fwp {
namespace {

struct Recurrences : Cpu {
  static void check(const char* op, const char* name, at::ScalarType type) { check_type(op, name, type); }
  static Tensor layout(const Tensor& weight) { return weight.contiguous(); }

  template <class T> static auto choose(RecurrenceKernel kernel) {
    const RecurrenceKernels<T>& kernels = chosen_recurrence_kernels<T>();
    switch (kernel) {
      case RecurrenceKernel::forward: return kernels.forward;
      case RecurrenceKernel::backward: return kernels.backward;
      case RecurrenceKernel::net_forward: return kernels.net_forward;
      default: return kernels.net_backward;
    }
  }

  template <class Describe>
  static void run(const char*, RecurrenceKernel kernel, const Tensor& x, const Describe& describe) {
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "fwp::recur", [&] {
      RecurrenceCall<scalar_t> c{};
      describe(c);
      for_each_head<scalar_t>(c, chosen_recurrence_kernels<scalar_t>().scratch(c), choose<scalar_t>(kernel));
    });
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(fwp, CPU, m) {
  m.impl("recur", &recur<Recurrences>);
  m.impl("recur_backward", &recur_backward<Recurrences>);
  m.impl("recur_net", &recur_net<Recurrences>);
  m.impl("recur_net_backward", &recur_net_backward<Recurrences>);
}

}  // namespace fwp
