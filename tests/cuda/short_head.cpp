// Forward and backward of a head of up to 32 tokens under the gated delta rule, causal, whose rows are features already, by
// the kernels for short sentences; stands behind a copy of them.
namespace {

using namespace fwp;
using namespace fwp::gpu;

template <class V> Rows<V> rows(void* data, int width) { return {static_cast<V*>(data), 0, width, width, 1}; }
template <class Kernel, class Lay> const char* run(Kernel kernel, Lay lay, const Call& call) {
  return launch(kernel, 1, 64, lay(nullptr, nullptr, call), Stream(), call);
}

}  // namespace

// Tensors (tokens, width) in bfloat16, strengths (tokens,) in float: q, k, v, beta, alpha, out, grad_out, and the gradients
// of the first five. Returns null, or what is wrong.
extern "C" const char* run_head(void* const* x, int tokens, int d_key, int d_value, int normalize_output, float eps) {
  Call c{};
  c.rule = Rule::gated_delta, c.map = Map::identity, c.type = Type::bfloat16;
  c.causal = c.batch = c.heads = 1, c.targets = c.sources = tokens;
  c.d_key = c.d_dot = d_key, c.d_value = d_value, c.normalize_output = normalize_output, c.eps = eps;
  c.q = rows<const void>(x[0], d_key), c.k = rows<const void>(x[1], d_key), c.v = rows<const void>(x[2], d_value);
  c.beta = rows<const float>(x[3], 1), c.alpha = rows<const float>(x[4], 1), c.out = rows<void>(x[5], d_value);
  if (const char* error = run(short_forward_kernel<32, true, true, false>, ShortForward<32, true, true, false>::lay, c))
    return error;
  c.grad_out = rows<const void>(x[6], d_value);
  c.grad_q = rows<void>(x[7], d_key), c.grad_k = rows<void>(x[8], d_key), c.grad_v = rows<void>(x[9], d_value);
  c.grad_beta = rows<float>(x[10], 1), c.grad_alpha = rows<float>(x[11], 1);
  return run(short_backward_kernel<32, true, true, false>, ShortBackward<32, true, true, false>::lay, c);
}
