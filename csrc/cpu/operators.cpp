// fast_weights and its backward on the CPU: the choice of kernels by type, and one task for each batch row and head.
#include "../common/operators.h"

#include <ATen/Dispatch.h>
#include <torch/library.h>

#include <iterator>
#include <string>
#include <vector>

#include "capability.h"
#include "glue.h"

namespace fwp {
namespace {

template <class T, class Out> Call<T> call_of(const Inputs& in, const Out& out) {
  Call<T> c{};
  in.describe(c);
  out.describe(c);
  return c;
}

// run(call, batch row, head, scratch) for every head; with both_ways those of the second half are given the turned call.
template <class T, class Run> void for_each_head(const Call<T>& c, bool both_ways, std::size_t size, Run run) {
  const Call<T> back = both_ways ? turned(c) : c;
  for_each_head<T>(c, size, [&](const Call<T>& c, int64_t b, int64_t h, T* own) {
    run(2 * h < c.heads ? c : back, b, h, own);
  });
}

struct Operators : Cpu {
  static void check(const char* op, const char* name, at::ScalarType type, int64_t) { check_type(op, name, type); }

  static void forward(const Inputs& in, const Results& results) {
    AT_DISPATCH_FLOATING_TYPES(in.q.scalar_type(), "fwp::fast_weights", [&] {
      const auto c = call_of<scalar_t>(in, results);
      const auto& kernels = chosen_kernels<scalar_t>();
      for_each_head<scalar_t>(c, in.options.both_ways, kernels.forward_scratch(c), kernels.forward);
    });
  }

  static void backward(const Inputs& in, const Gradients& found) {
    AT_DISPATCH_FLOATING_TYPES(in.q.scalar_type(), "fwp::fast_weights_backward", [&] {
      const auto c = call_of<scalar_t>(in, found);
      const auto& kernels = chosen_kernels<scalar_t>();
      for_each_head<scalar_t>(c, in.options.both_ways, kernels.backward_scratch(c), kernels.backward);
    });
  }
};

std::vector<std::string> feature_maps() { return {std::begin(map_names), std::end(map_names)}; }
std::string cpu_capability() { return capability_name(); }
void choose_cpu_capability(std::string name) { choose_capability(name); }

}  // namespace

TORCH_LIBRARY_IMPL(fwp, CPU, m) {
  m.impl("fast_weights", &fast_weights<Operators>);
  m.impl("fast_weights_backward", &fast_weights_backward<Operators>);
}
TORCH_LIBRARY_IMPL(fwp, CompositeExplicitAutograd, m) {
  m.impl("feature_maps", &feature_maps);
  m.impl("cpu_capability", &cpu_capability);
  m.impl("choose_cpu_capability", &choose_cpu_capability);
}

}  // namespace fwp
