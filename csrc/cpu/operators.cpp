// fast_weights and its backward on the CPU: the choice of kernels by type, and one task for each batch row and head.
#include "../common/operators.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <iterator>
#include <string>
#include <vector>

#include "capability.h"
#include "glue.h"

namespace fwp {
namespace {

template <class T, class In, class Out> Call<T, In> call_of(const Inputs& in, const Out& out) {
  Call<T, In> c{};
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

// Returns whether the bfloat16 kernels serve the call; then they have run.
bool run_bf16(const Call<float, Bf16>& c) {
  const KernelsBf16* kernels = chosen_bf16_kernels();
  if (!kernels || !kernels->serves(c)) return false;
  const std::size_t scratch_size = kernels->forward_scratch(c);
  at::parallel_for(0, c.batch * c.heads, 1, [&](int64_t first, int64_t last) {
    kernels->forward(c, first, last, scratch<float>(scratch_size));
  });
  return true;
}

struct Operators : Cpu {
  static void check(const char* op, const char* name, at::ScalarType type, int64_t) {
    if (type != at::kBFloat16) check_type(op, name, type);
  }

  static void forward(const Inputs& in, const Results& results) {
    const at::ScalarType type = in.q.scalar_type();
    if (type == at::kBFloat16) {
      if (!in.options.both_ways && run_bf16(call_of<float, Bf16>(in, results))) return;
      const Inputs wide = in.converted(at::kFloat);
      const Results rounded_later{new_rows(wide.q, in.d_value()), results.W, results.z};
      forward(wide, rounded_later);
      results.out.copy_(rounded_later.out);
      return;
    }
    AT_DISPATCH_FLOATING_TYPES(type, "fwp::fast_weights", [&] {
      const auto c = call_of<scalar_t, scalar_t>(in, results);
      const auto& kernels = chosen_kernels<scalar_t>();
      for_each_head<scalar_t>(c, in.options.both_ways, kernels.forward_scratch(c), kernels.forward);
    });
  }

  static void backward(const Inputs& in, const Gradients& found) {
    const at::ScalarType type = in.q.scalar_type();
    if (type == at::kBFloat16) {
      Gradients wide = found;
      wide.out = found.out.to(at::kFloat);
      for (Tensor* x : {&wide.q, &wide.k, &wide.v}) *x = at::empty_like(*x, x->options().dtype(at::kFloat));
      backward(in.converted(at::kFloat), wide);
      found.q.copy_(wide.q);
      found.k.copy_(wide.k);
      found.v.copy_(wide.v);
      return;
    }
    AT_DISPATCH_FLOATING_TYPES(type, "fwp::fast_weights_backward", [&] {
      const auto c = call_of<scalar_t, scalar_t>(in, found);
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
