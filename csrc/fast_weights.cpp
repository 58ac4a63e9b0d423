// Operator schemas, nothing else. Meaning and shapes: fwp_fairseq/ops/fast_weights.py; fake kernels and autograd:
// fwp_fairseq/ops/native.py; implementations: common/operators.h and its neighbours, which cpu/*operators.cpp and
// cuda/*.cpp register.
#include <torch/library.h>

// rule and feature_map: names of common/maps.h. projection: (m, d_key), exactly for maps that have one, of
// x' = d_key^-1/4 x. both_ways: the second half of the heads goes from the last position to the first; with causal
// only. Without return_state, W and z come back empty. The backward returns the gradients of q, k, v, beta, alpha,
// initial_W and initial_z, empty for what was not given.
TORCH_LIBRARY(fwp, m) {
  m.def(
      "fast_weights(Tensor q, Tensor k, Tensor v, Tensor? beta, Tensor? alpha, Tensor? key_padding_mask, "
      "Tensor? initial_W, Tensor? initial_z, Tensor? projection, str rule, str feature_map, SymInt d_dot, "
      "bool causal, bool both_ways, bool normalize_features, bool normalize_output, float eps, bool return_state) "
      "-> (Tensor out, Tensor W, Tensor z)");
  m.def(
      "fast_weights_backward(Tensor grad_out, Tensor? grad_W, Tensor? grad_z, Tensor q, Tensor k, Tensor v, "
      "Tensor? beta, Tensor? alpha, Tensor? key_padding_mask, Tensor? initial_W, Tensor? initial_z, "
      "Tensor? projection, str rule, str feature_map, SymInt d_dot, bool causal, bool both_ways, "
      "bool normalize_features, bool normalize_output, float eps) -> (Tensor grad_q, Tensor grad_k, Tensor grad_v, "
      "Tensor grad_beta, Tensor grad_alpha, "
      "Tensor grad_W, Tensor grad_z)");
  // Decoding, see fwp_fairseq/ops/decoding.py: with k, v (and the rule's strengths) decode appends their positions to
  // the first `count` of the block, in row r of storage for row r, and reads after each; without them it only reads.
  // Without ancestors, position j of row r lies in row rows[r] of storage. projection: (d_key, m). fold: the state of
  // each row after the block; z empty where the output is not normalised.
  m.def(
      "decode(Tensor q, Tensor? k, Tensor? v, Tensor? beta, Tensor? alpha, Tensor? key_padding_mask, Tensor(a!) keys, "
      "Tensor(b!) written, Tensor(c!)? strengths, Tensor(d!)? ancestors, Tensor rows, Tensor? W, Tensor? z, Tensor? "
      "projection, "
      "SymInt count, str rule, str feature_map, SymInt d_dot, bool normalize_features, "
      "bool normalize_output, float eps) -> Tensor");
  m.def(
      "fold(Tensor keys, Tensor written, Tensor? strengths, Tensor ancestors, Tensor rows, Tensor? W, Tensor? z, "
      "SymInt count, str rule, str feature_map, SymInt d_dot, bool normalize_output) -> (Tensor W, Tensor z)");
  // The recurrence of the Delta RNN, see fwp_fairseq/ops/recurrence.py. `written` and the last R are what the
  // backward goes back from; it returns the gradients of z, k, v, beta, R and y.
  m.def(
      "recur(Tensor z, Tensor k, Tensor v, Tensor beta, Tensor? key_padding_mask, Tensor? R, Tensor? y) "
      "-> (Tensor out, Tensor R, Tensor y, Tensor written)");
  m.def(
      "recur_backward(Tensor grad_out, Tensor? grad_R, Tensor? grad_y, Tensor found, Tensor last_R, Tensor written, "
      "Tensor k, Tensor v, Tensor beta, Tensor? key_padding_mask, Tensor? y) "
      "-> (Tensor grad_z, Tensor grad_k, Tensor grad_v, Tensor grad_beta, Tensor grad_R, Tensor grad_y)");
  // The recurrence of the Delta LSTM, see fwp_fairseq/ops/recurrence.py. cells, gates, `written` and the last R
  // are what the backward goes back from; it returns the gradients of z, k, v, beta, R, h and c.
  m.def(
      "recur_lstm(Tensor z, Tensor k, Tensor v, Tensor beta, Tensor? key_padding_mask, Tensor? R, Tensor? h, Tensor? "
      "c) "
      "-> (Tensor out, Tensor R, Tensor h, Tensor c, Tensor cells, Tensor gates, Tensor written)");
  m.def(
      "recur_lstm_backward(Tensor grad_out, Tensor? grad_R, Tensor? grad_h, Tensor? grad_c, Tensor found, Tensor "
      "cells, "
      "Tensor gates, Tensor last_R, Tensor written, Tensor k, Tensor v, Tensor beta, Tensor? key_padding_mask, Tensor? "
      "h, "
      "Tensor? c) -> (Tensor grad_z, Tensor grad_k, Tensor grad_v, Tensor grad_beta, Tensor grad_R, Tensor grad_h, "
      "Tensor grad_c)");
  // The latest positions of causal attention and sums of earlier ones, see fwp_fairseq/ops/window.py. With places, k
  // and v are storage (P, 1, H, d), of which row r reads places[r]. The backward returns the gradients of the tensors
  // in this order.
  m.def(
      "read_window(Tensor q, Tensor k, Tensor v, Tensor? sums, Tensor u, Tensor bias, Tensor? key_padding_mask, "
      "Tensor? places, SymInt size) -> Tensor");
  m.def(
      "read_window_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor? sums, Tensor u, Tensor bias, "
      "Tensor? key_padding_mask, SymInt size) "
      "-> (Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor grad_sums, Tensor grad_u, Tensor grad_bias)");
  // [softmax(y), softmax(-y)] of the last dimension, see fwp_fairseq/feature_maps/softmax_pair.py.
  m.def("softmax_pair(Tensor y) -> Tensor");
  m.def("softmax_pair_backward(Tensor grad_f, Tensor f) -> Tensor");
  // Rows of length one, or with a root mean square of one, see fwp_fairseq/feature_maps/unit_rows.py.
  m.def("to_length_one(Tensor x, float eps) -> Tensor");
  m.def("to_length_one_backward(Tensor grad_y, Tensor x, float eps) -> Tensor");
  m.def("elu_to_length_one(Tensor x, float eps) -> Tensor");
  m.def("elu_to_length_one_backward(Tensor grad_y, Tensor x, float eps) -> Tensor");
  m.def("to_rms_one(Tensor x, float eps) -> Tensor");
  m.def("to_rms_one_backward(Tensor grad_y, Tensor x, float eps) -> Tensor");
  // The lists of common/maps.h.
  m.def("rules() -> str[]");
  m.def("feature_maps() -> str[]");
  m.def("cpu_capability() -> str");
  m.def("choose_cpu_capability(str name) -> ()");
}
