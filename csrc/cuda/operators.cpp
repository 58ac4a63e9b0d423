// fast_weights and its backward on CUDA: groups of heads, and what a device can serve.
#include <torch/library.h>

#include <algorithm>
#include <limits>

#include "../common/elementwise.h"
#include "../common/operators.h"
#include "glue.h"
#include "launches.h"

namespace fwp::gpu {
namespace {

// Heads are processed in groups of equal size. A group has up to eight heads per multiprocessor if blocks are small,
// else four. This number is halved while its workspace is larger than large_bytes, down to one head per multiprocessor,
// and further only while it is larger than most_bytes. A group has more heads if their workspace fits into
// cached_bytes.
constexpr int64_t cached_bytes = 64 << 20, large_bytes = 1 << 30, most_bytes = int64_t(4) << 30;

// Returns true if one launch can serve the call: a rule and a map that the kernels know, no states, few tokens, numbers
// of 2 bytes or float features that are given, rows of multiples of 16 bytes, and little shared memory.
bool short_serves(const Call& c) {
  constexpr int most_shared_bytes = 99 * 1024;
  const int most = c.backward ? most_backward_tokens : most_forward_tokens;
  const bool states = c.initial_W || c.W || c.grad_W;
  const bool results =
      c.backward ? c.grad_out.aligned && c.grad_q.aligned && c.grad_k.aligned && c.grad_v.aligned : c.out.aligned;
  // For a rule that does not correct, the kernels multiply by beta if and only if it decays.
  const bool known =
      corrects(c.rule) || (decays(c.rule) == weighs_writes(c.rule) && decays(c.rule) == takes_beta(c.rule));
  // The kernels compute the largest feature of a row from its least and greatest number.
  const bool scales = c.map == Map::dpfp || monotonic(c.map);
  return known && scales && !states && std::min(c.targets, c.sources) > 0 && std::max(c.targets, c.sources) <= most &&
         (c.x_type != Type::float32 || c.map == Map::identity) && c.q.aligned && c.k.aligned && c.v.aligned &&
         results && bytes_of_short(c) <= most_shared_bytes;
}

struct CudaRules {
  template <class Describe>
  static void run(const Problem& p, const Tensor& q, const Tensor& v, const Describe& describe, bool backward) {
    const c10::cuda::CUDAGuard guard(q.device());
    Call call{};
    call.backward = backward;
    Fields fields(p.op, q);
    check_sizes(p.op, "q", q.scalar_type(), p.d_key);
    TORCH_CHECK_VALUE(elementwise(p.map) || p.map == Map::dpfp, p.op, ": feature_map is ", name_of(p.map),
                      ", expected its features and the identity on CUDA");
    describe(fields, call);
    TORCH_CHECK_VALUE(!p.options.both_ways || !(call.initial_W || call.W || call.grad_W), p.op,
                      ": both_ways is true with a state, expected false on CUDA");
    call.both_ways = p.options.both_ways;
    call.x_type = type_of(p.op, "q", q.scalar_type());
    call.type = type_of(p.op, "v", v.scalar_type());
    TORCH_CHECK_VALUE(call.type != Type::float32, p.op, ": v is of type Float, expected Half or BFloat16 on CUDA");
    if (!fields.ready()) return;
    constexpr int64_t most = std::numeric_limits<int>::max() - chunk;  // kernels count in int
    for (int64_t size : {p.batch * p.heads, p.targets, p.sources})
      TORCH_CHECK_VALUE(size <= most, p.op, ": ", size, " heads or tokens, expected at most ", most, " on CUDA");
    if (short_serves(call)) return start(p.op, run_short, call);
    start_groups(p.op, q, call);
  }
  static void start_groups(const char* op, const Tensor& q, Call& call) {
    const int heads = call.batch * call.heads;
    call.group = 1;
    const int64_t bytes = lay(call, nullptr);
    const int processors = attribute(op, cudaDevAttrMultiProcessorCount, q.get_device());
    int64_t filling = int64_t(processors) * (4 * chunk / block_rows(call));
    while (filling > 1 && filling * bytes > (filling > processors ? large_bytes : most_bytes)) filling /= 2;
    const int64_t most = std::max(cached_bytes / bytes, filling), groups = (heads + most - 1) / most;
    call.group = static_cast<int>((heads + groups - 1) / groups);
    call.walk_width = chunk;
    const auto walks = [&] { return call.group * (call.backward ? 1 : walks_of(call)) * walk_slices_of(call); };
    const bool changes = chunks_of(call) > 1 || call.W;  // so that there is a state to walk with
    call.split_walk = changes && !corrects(call.rule) && call.group * walk_slices_of(call) < 2 * processors;
    while (call.walk_width > 16 && walks() < 2 * processors) call.walk_width /= 2;
    const Tensor workspace = at::empty({lay(call, nullptr)}, q.options().dtype(at::kByte));
    for (; call.first_head < heads; call.first_head += call.group) {
      call.group = std::min(call.group, heads - call.first_head);
      lay(call, static_cast<char*>(workspace.mutable_data_ptr()));
      Launches launches{call, c10::cuda::getCurrentCUDAStream().stream()};
      if (call.backward) launches.backward();
      else launches.forward();
      TORCH_CHECK(launches.error == nullptr, op, ": ", launches.error);
    }
  }
  template <class Describe>
  static void forward(const Problem& p, const Tensor& q, const Tensor& v, const Describe& describe) {
    run(p, q, v, describe, false);
  }
  template <class Describe>
  static void backward(const Problem& p, const Tensor& q, const Tensor& v, const Describe& describe) {
    run(p, q, v, describe, true);
  }
};

// Why this device cannot serve calls of these sizes, or an empty text.
std::string cuda_refusal(int64_t device, std::string rule, int64_t d_key, int64_t d_dot) {
  static constexpr char op[] = "fwp::cuda_refusal";
  Call call{};
  call.rule = rule_of(op, rule);
  call.d_key = static_cast<int>(d_key);
  call.d_dot = static_cast<int>(d_dot);
  call.targets = call.sources = chunk;  // longer ones need no more
  call.backward = true;
  return refusal(op, device, std::max(bytes_of_block(call), bytes_of_rows(call)));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fwp, m) {
  m.def("cuda_refusal(int device, str rule, int d_key, int d_dot) -> str", &cuda_refusal);
}
TORCH_LIBRARY_IMPL(fwp, CUDA, m) {
  m.impl("fast_weights", &fwp::fast_weights<CudaRules>);
  m.impl("fast_weights_backward", &fwp::fast_weights_backward<CudaRules>);
}

}  // namespace fwp::gpu
