// fast_weights and its backward on CUDA: what depends on the device, workspace, and the launch.
#include <torch/library.h>

#include <algorithm>

#include "../common/operators.h"
#include "glue.h"
#include "kernels/launch.h"

namespace fwp::gpu {
namespace {

struct Operators : Cuda {
  template <class Out> static Call call_of(const Inputs& in, const Out& out, bool backward) {
    check_rule(in.op, in.rule);
    Call call{};
    in.describe(call);
    out.describe(call);
    call.type = type_of(in.op, "q", in.q.scalar_type());
    fit(call, backward, shared_memory(in.op, in.q.get_device()));
    return call;
  }

  static void forward(const Inputs& in, const Results& results) {
    Call call = call_of(in, results, false);
    std::pair<Tensor, Tensor> between;
    if (is_segmented(call) && !call.resident && !call.W) {
      between = in.new_states(true);
      point(call.W, between.first);
      point(call.z, between.second);
    }
    start(in.op, gpu::forward, call);
  }

  static void backward(const Inputs& in, const Gradients& found) {
    Call call = call_of(in, found, true);
    std::array<Tensor, 4> workspace;
    if (is_segmented(call)) {
      call.checkpoints = checkpoints_of(call);
      const int64_t states = states_of(call), B = in.batch(), H = in.heads(), d_dot = in.options.d_dot;
      const auto make = [&](Tensor& x, float*& to, bool wanted, at::IntArrayRef shape) {
        if (!wanted || to) return;
        x = at::empty(shape, in.q.options().dtype(at::kFloat));
        point(to, x);
      };
      make(workspace[0], call.W, true, {states, B, H, d_dot, in.d_value()});
      make(workspace[1], call.z, call.normalize_output, {states, B, H, d_dot});
      make(workspace[2], call.grad_initial_W, true, {B, H, d_dot, in.d_value()});
      make(workspace[3], call.grad_initial_z, call.normalize_output, {B, H, d_dot});
    }
    start(in.op, gpu::backward, call);
  }
};

// Why this device cannot serve calls of these sizes, or an empty text.
std::string cuda_refusal(int64_t device, std::string rule, at::ScalarType type, std::string feature_map, int64_t d_key,
                         int64_t d_value, int64_t d_dot, int64_t longest, bool state, bool differentiated) {
  static constexpr char op[] = "fwp::cuda_refusal";
  Call call{};
  const float present = 0;
  call.rule = rule_of(op, rule);
  check_rule(op, call.rule);
  call.map = map_of(op, feature_map);
  Cuda::check(op, "q", type, d_key);
  const Width width = checked_width(op, call.map, d_key, d_dot);
  call.type = type_of(op, "q", type);
  call.d_key = static_cast<int>(d_key);
  call.d_value = static_cast<int>(d_value);
  call.d_dot = static_cast<int>(d_dot);
  call.nu = static_cast<int>(width.nu);
  call.m = static_cast<int>(width.m);
  call.targets = call.sources = static_cast<int>(longest);
  call.initial_W = state ? &present : nullptr;
  const int limit = shared_memory(op, device);
  const auto needs = [&](bool backward) {
    fit(call, backward, limit);
    return most_bytes(call, backward);
  };
  return refusal(op, device, differentiated ? std::max(needs(false), needs(true)) : needs(false));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fwp, m) {
  m.def(
      "cuda_refusal(int device, str rule, ScalarType type, str feature_map, int d_key, int d_value, int d_dot, "
      "int longest, bool state, bool differentiated) -> str",
      &cuda_refusal);
}
TORCH_LIBRARY_IMPL(fwp, CUDA, m) {
  m.impl("fast_weights", &fwp::fast_weights<Operators>);
  m.impl("fast_weights_backward", &fwp::fast_weights_backward<Operators>);
}

}  // namespace fwp::gpu
