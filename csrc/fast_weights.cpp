// Operator schemas, nothing else. Meaning and shapes: fwp_fairseq/ops/fast_weights.py; fake kernels and autograd:
// fwp_fairseq/ops/native.py.
#include <torch/library.h>

// rule: sum, delta, gated. feature_map: identity, elu, dpfp (nu = d_dot / 2 d_key), favor (m = d_dot / 2, with its projection
// (m, d_key) and x' = input_scale x). Without return_state, W and z come back empty. The backward returns the gradients
// of q, k, v, beta, initial_W and initial_z, empty for what was not given.
TORCH_LIBRARY(fwp, m) {
  m.def(
      "fast_weights(Tensor q, Tensor k, Tensor v, Tensor? beta, Tensor? key_padding_mask, Tensor? initial_W, "
      "Tensor? initial_z, Tensor? projection, str rule, str feature_map, SymInt d_dot, float input_scale, bool causal, "
      "bool normalize_features, bool normalize_output, float eps, bool return_state) "
      "-> (Tensor out, Tensor W, Tensor z)");
  m.def(
      "fast_weights_backward(Tensor grad_out, Tensor? grad_W, Tensor? grad_z, Tensor q, Tensor k, Tensor v, "
      "Tensor? beta, Tensor? key_padding_mask, Tensor? initial_W, Tensor? initial_z, Tensor? projection, str rule, "
      "str feature_map, SymInt d_dot, float input_scale, bool causal, bool normalize_features, bool normalize_output, "
      "float eps) -> (Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor grad_beta, Tensor grad_W, Tensor grad_z)");
  m.def("cpu_capability() -> str");
}
