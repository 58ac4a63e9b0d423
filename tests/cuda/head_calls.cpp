// A causal head: forward and backward by the kernels for short sentences (up to 32 tokens) and for long ones, and decoding;
// stands behind a copy of them. Short sentences and decoding are under the gated delta rule, and their rows are features
// already. So are those of long sentences, unless nu is above 0: then the map is DPFP, and features are normalised.
namespace {

using namespace fwp;
using namespace fwp::gpu;

template <class V> Rows<V> rows(void* data, int width) { return {static_cast<V*>(data), 0, width, width, 1}; }
template <class C> void describe(C& c, void* const* x, int d_key, int d_value, float eps) {
  c.rule = Rule::gated_delta, c.map = Map::identity, c.heads = 1;
  c.x_type = c.type = Type::bfloat16;
  c.d_key = c.d_dot = d_key, c.d_value = d_value, c.eps = eps;
  c.q = rows<const void>(x[0], d_key), c.k = rows<const void>(x[1], d_key), c.v = rows<const void>(x[2], d_value);
  c.beta = rows<const float>(x[3], 1), c.alpha = rows<const float>(x[4], 1), c.out = rows<void>(x[5], d_value);
}
void describe(Call& c, void* const* x, int tokens, int d_key, int d_value, int normalize_output, float eps) {
  describe(c, x, d_key, d_value, eps);
  c.causal = c.batch = 1, c.targets = c.sources = tokens, c.normalize_output = normalize_output;
}
void want_gradients(Call& c, void* const* x) {
  c.backward = true;
  c.grad_out = rows<const void>(x[6], c.d_value);
  c.grad_q = rows<void>(x[7], c.d_key), c.grad_k = rows<void>(x[8], c.d_key), c.grad_v = rows<void>(x[9], c.d_value);
  c.grad_beta = rows<float>(x[10], 1), c.grad_alpha = rows<float>(x[11], 1);
}
template <class Kernel, class Lay> const char* run(Kernel kernel, Lay lay, const Call& call) {
  return launch(kernel, 1, 64, lay(nullptr, nullptr, call), Stream(), call);
}

}  // namespace

// Tensors (tokens, width) in bfloat16, gates (tokens,) in float: q, k, v, beta, alpha, out, grad_out, and the gradients
// of the first five. Returns null, or what is wrong.
extern "C" const char* run_sentence(void* const* x, int tokens, int d_key, int d_value, int normalize_output,
                                    float eps) {
  Call c{};
  describe(c, x, tokens, d_key, d_value, normalize_output, eps);
  if (const char* error = run(short_forward_kernel<32, true, true, false>, ShortForward<32, true, true, false>::lay, c))
    return error;
  want_gradients(c, x);
  return run(short_backward_kernel<32, true, true, false>, ShortBackward<32, true, true, false>::lay, c);
}
extern "C" const char* run_chunks(void* const* x, int tokens, int d_key, int d_value, int normalize_output, float eps,
                                  int rule, int nu) {
  Call c{};
  describe(c, x, tokens, d_key, d_value, normalize_output, eps);
  c.rule = Rule(rule), c.group = 1, c.walk_width = chunk;
  if (nu > 0) c.map = Map::dpfp, c.nu = nu, c.d_dot = 2 * nu * d_key, c.normalize_features = 1;
  for (const bool backward : {false, true}) {
    if (backward) want_gradients(c, x);
    std::vector<Eight> workspace(lay(c, nullptr) / sizeof(Eight), Eight{{~0u, ~0u, ~0u, ~0u}});  // NaN
    lay(c, reinterpret_cast<char*>(workspace.data()));
    Launches launches{c, nullptr};
    if (backward) launches.backward();
    else launches.forward();
    if (launches.error) return launches.error;
  }
  return nullptr;
}
// The first six, token after token.
extern "C" const char* run_steps(void* const* x, int tokens, int d_key, int d_value, int normalize_output, float eps) {
  DecodeCall c{};
  describe(c, x, d_key, d_value, eps);
  c.rows = c.stored = c.states = 1, c.tokens = tokens, c.d_cached = d_key, c.normalize_output = normalize_output;
  std::vector<Eight> keys(tokens * d_key / 8), written(tokens * d_value / 8);
  std::vector<float> strengths(tokens);
  std::vector<int> ancestors(tokens), state_rows(1);
  c.keys = keys.data(), c.written = written.data(), c.strengths = strengths.data();
  c.ancestors = ancestors.data(), c.ancestors_ld = tokens, c.state_rows = state_rows.data();
  return launch(decode_kernel, 1, decode_threads, DecodeShared().lay(nullptr, c), Stream(), c);
}
