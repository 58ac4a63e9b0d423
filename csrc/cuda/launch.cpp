// fast_weights and its backward on CUDA: what depends on the device, workspace, and the launch.
#include <torch/library.h>

#include <algorithm>

#include "../common/operators.h"
#include "glue.h"
#include "kernels/launch_backward.h"

namespace fwp::gpu {
namespace {

struct Operators {
  static void fill_in(const Problem& p, const Tensor& q, Call& call) {
    check_rule(p.op, p.rule);
    check_map(p.op, p.map);
    call.type = type_of(p.op, "q", q.scalar_type());
    TORCH_CHECK_VALUE(!p.options.both_ways || !(call.initial_W || call.W || call.grad_W), p.op,
                      ": both_ways is true with a state, expected false on CUDA");
  }

  template <class Describe> static void forward(const Problem& p, const Tensor& q, const Describe& describe) {
    const c10::cuda::CUDAGuard guard(q.device());
    Call whole{};
    Fields fields(p.op, q);
    check_sizes(p.op, "q", q.scalar_type(), p.d_key);
    describe(fields, whole);
    fill_in(p, q, whole);
    if (!fields.ready()) return;
    for_directions(whole, p.options.both_ways, [&](Call call) { forward(p, q, call); });
  }
  static void forward(const Problem& p, const Tensor& q, Call call) {
    fit(call, false, shared_memory(p.op, q.get_device()));
    const auto states = q.options().dtype(at::kFloat);
    Tensor W, z;
    if (is_segmented(call) && !call.resident && !call.W) {
      W = at::empty(p.state_shape(), states);
      point(call.W, W);
      if (p.options.normalize_output) {
        z = at::empty({p.batch, p.heads, p.options.d_dot}, states);
        point(call.z, z);
      }
    }
    Tensor workspace;
    if (is_in_pieces(call, attribute(p.op, cudaDevAttrMultiProcessorCount, q.get_device()))) {
      workspace = at::empty({workspace_of(call)}, states);
      float* room = nullptr;
      point(room, workspace);
      place_pieces(call, room);
    }
    start(p.op, gpu::forward, call);
  }

  template <class Describe> static void backward(const Problem& p, const Tensor& q, const Describe& describe) {
    const c10::cuda::CUDAGuard guard(q.device());
    Pieces whole{};
    Fields fields(p.op, q);
    check_sizes(p.op, "q", q.scalar_type(), p.d_key);
    describe(fields, whole);
    fill_in(p, q, whole);
    if (!fields.ready()) return;
    for_directions(whole, p.options.both_ways, [&](Pieces call) { backward(p, q, call); });
  }
  static void backward(const Problem& p, const Tensor& q, Pieces call) {
    fit(call, shared_memory(p.op, q.get_device()));
    Tensor workspace;
    if (is_segmented(call)) {
      group(call);
      workspace = at::empty({workspace_of(call)}, q.options().dtype(at::kFloat));
      point(call.workspace, workspace);
    }
    start(p.op, gpu::backward, call);
  }
};

// Why this device cannot serve calls of these sizes, or an empty text.
std::string cuda_refusal(int64_t device, std::string rule, at::ScalarType type, std::string feature_map, int64_t d_key,
                         int64_t d_value, int64_t d_dot, int64_t longest, bool state, bool differentiated) {
  static constexpr char op[] = "fwp::cuda_refusal";
  Pieces call{};
  const float present = 0;
  call.rule = rule_of(op, rule);
  check_rule(op, call.rule);
  call.map = map_of(op, feature_map);
  check_map(op, call.map);
  check_sizes(op, "q", type, d_key);
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
  fit(call, false, limit);
  int needed = most_bytes(static_cast<const Call&>(call));
  if (differentiated) {
    fit(call, limit);
    needed = std::max(needed, most_bytes(call));
  }
  return refusal(op, device, needed);
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
