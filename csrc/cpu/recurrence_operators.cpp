// recur, recur_lstm and their backwards on the CPU: the choice of kernels by type, and one task for each batch row and
// head.
#include "../common/recurrence_operators.h"

#include <torch/library.h>

#include "capability.h"
#include "glue.h"

namespace fwp {
namespace {

struct Recurrences {
  template <class Describe>
  static void run(const char* op, RecurrenceKernel kernel, const Tensor& k, const Describe& describe) {
    with_call<RecurrenceCall>(op, "k", k, describe, [&](const auto& c, auto number) {
      const auto& kernels = chosen_kernels<decltype(number)>().recurrence;
      for_each_head(c, kernel == RecurrenceKernel::forward ? kernels.forward : kernels.backward);
    });
  }
  template <class Describe>
  static void run_lstm(const char* op, RecurrenceKernel kernel, const Tensor& k, const Describe& describe) {
    with_call<LstmCall>(op, "k", k, describe, [&](const auto& c, auto number) {
      const auto& kernels = chosen_kernels<decltype(number)>().lstm;
      for_each_head(c, kernel == RecurrenceKernel::forward ? kernels.forward : kernels.backward);
    });
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(fwp, CPU, m) {
  m.impl("recur", &recur<Recurrences>);
  m.impl("recur_backward", &recur_backward<Recurrences>);
  m.impl("recur_lstm", &recur_lstm<Recurrences>);
  m.impl("recur_lstm_backward", &recur_lstm_backward<Recurrences>);
}

}  // namespace fwp
