// fast_weights and its backward on the CPU: the choice of kernels by type, and one task for each batch row and head.
#include "../common/operators.h"

#include <torch/library.h>

#include <iterator>
#include <string>
#include <vector>

#include "capability.h"
#include "glue.h"

namespace fwp {
namespace {

// `number` is any number of the call's type, and serves for its type only.
struct CpuRules {
  template <class Describe>
  static void forward(const Problem& p, const Tensor& q, const Tensor& v, const Describe& describe) {
    check_is(p.op, "v", v, q.scalar_type());
    with_call<Call>(p.op, "q", q, describe,
                    [&](const auto& c, auto number) { run(p, c, chosen_kernels<decltype(number)>().rules.forward); });
  }
  template <class Describe>
  static void backward(const Problem& p, const Tensor& q, const Tensor& v, const Describe& describe) {
    check_is(p.op, "v", v, q.scalar_type());
    with_call<Call>(p.op, "q", q, describe,
                    [&](const auto& c, auto number) { run(p, c, chosen_kernels<decltype(number)>().rules.backward); });
  }

  // With both_ways the heads of the second half are given the reversed call.
  template <class T> static void run(const Problem& p, const Call<T>& c, const HeadKernel<Call<T>, T>& kernel) {
    const Call<T> back = p.options.both_ways ? reversed(c) : c;
    for_each_head<T>(c, kernel.scratch(c), [&](const Call<T>& c, int64_t b, int64_t h, T* own) {
      kernel.run(2 * h < c.heads ? c : back, b, h, own);
    });
  }
};

std::vector<std::string> rules() { return {std::begin(rule_names), std::end(rule_names)}; }
std::vector<std::string> feature_maps() { return {std::begin(map_names), std::end(map_names)}; }
std::string cpu_capability() { return capability_name(); }
void choose_cpu_capability(std::string name) { choose_capability(name); }

}  // namespace

TORCH_LIBRARY_IMPL(fwp, CPU, m) {
  m.impl("fast_weights", &fast_weights<CpuRules>);
  m.impl("fast_weights_backward", &fast_weights_backward<CpuRules>);
}
TORCH_LIBRARY_IMPL(fwp, CompositeExplicitAutograd, m) {
  m.impl("rules", &rules);
  m.impl("feature_maps", &feature_maps);
  m.impl("cpu_capability", &cpu_capability);
  m.impl("choose_cpu_capability", &choose_cpu_capability);
}

}  // namespace fwp
