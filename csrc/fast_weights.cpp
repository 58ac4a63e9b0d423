// The schemas of the operators, and nothing else. fwp_fairseq/ops/fast_weights.py explains the arguments and their
// shapes, and fwp_fairseq/ops/native.py declares fake kernels and gradients. The implementations are in
// common/operators.h and the files beside it; cpu/*operators.cpp and cuda/*.cpp register them.
#include <torch/library.h>

// rule and feature_map are names in common/rules.h and maps.h. Maps that have a projection, (m, d_key), multiply it by
// x' = d_key^-1/4 x. With both_ways, which requires causal, the second half of the heads goes from the last position to
// the first. Without return_state, the returned W and z are empty. The backward returns the gradients of q, k, v, beta,
// alpha, initial_W and initial_z; those of absent inputs are empty.
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
  // Decoding (fwp_fairseq/ops/decoding.py). With k, v and the gates of the rule, decode appends their positions to the
  // first `count` positions of the block, those of row r in row r of its storage, and reads after each of them. Without
  // k and v, it only reads. Without ancestors, the positions of row r are in row rows[r] of the storage. projection is
  // (d_key, m). fold computes the state of each row after the block; z is empty if the output is not normalised.
  m.def(
      "decode(Tensor q, Tensor? k, Tensor? v, Tensor? beta, Tensor? alpha, Tensor? key_padding_mask, Tensor(a!) keys, "
      "Tensor(b!) written, Tensor(c!)? strengths, Tensor(d!)? ancestors, Tensor rows, Tensor? W, Tensor? z, Tensor? "
      "projection, "
      "SymInt count, str rule, str feature_map, SymInt d_dot, bool normalize_features, "
      "bool normalize_output, float eps) -> Tensor");
  m.def(
      "fold(Tensor keys, Tensor written, Tensor? strengths, Tensor ancestors, Tensor rows, Tensor? W, Tensor? z, "
      "SymInt count, str rule, str feature_map, SymInt d_dot, bool normalize_output) -> (Tensor W, Tensor z)");
  // The recurrence of the Delta RNN (fwp_fairseq/ops/recurrence.py). The backward recovers earlier matrices from the
  // last R and `written`, and returns the gradients of z, k, v, beta, R and y.
  m.def(
      "recur(Tensor z, Tensor k, Tensor v, Tensor beta, Tensor? key_padding_mask, Tensor? R, Tensor? y) "
      "-> (Tensor out, Tensor R, Tensor y, Tensor written)");
  m.def(
      "recur_backward(Tensor grad_out, Tensor? grad_R, Tensor? grad_y, Tensor found, Tensor last_R, Tensor written, "
      "Tensor k, Tensor v, Tensor beta, Tensor? key_padding_mask, Tensor? y) "
      "-> (Tensor grad_z, Tensor grad_k, Tensor grad_v, Tensor grad_beta, Tensor grad_R, Tensor grad_y)");
  // The recurrence of the Delta LSTM (fwp_fairseq/ops/recurrence.py). The backward uses cells and gates, recovers
  // earlier matrices from the last R and `written`, and returns the gradients of z, k, v, beta, R, h and c.
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
  // Attention over the latest positions, and sums over earlier ones (fwp_fairseq/ops/window.py). With places, k and v
  // are storage (P, 1, H, d), from which row r reads the positions places[r]. The backward returns the gradients of q,
  // k, v, sums, u and bias.
  m.def(
      "read_window(Tensor q, Tensor k, Tensor v, Tensor? sums, Tensor u, Tensor bias, Tensor? key_padding_mask, "
      "Tensor? places, SymInt size) -> Tensor");
  m.def(
      "read_window_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor? sums, Tensor u, Tensor bias, "
      "Tensor? key_padding_mask, SymInt size) "
      "-> (Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor grad_sums, Tensor grad_u, Tensor grad_bias)");
  // Softmax attention to a source that several queries read (fwp_fairseq/ops/source.py).
  m.def("read_source(Tensor q, Tensor keys, Tensor values, Tensor? key_padding_mask) -> Tensor");
  // [softmax(y), softmax(-y)] over the last dimension (fwp_fairseq/feature_maps/softmax_pair.py).
  m.def("softmax_pair(Tensor y) -> Tensor");
  m.def("softmax_pair_backward(Tensor grad_f, Tensor f) -> Tensor");
  // Rows divided by their length or by their root mean square (fwp_fairseq/feature_maps/unit_rows.py).
  m.def("to_length_one(Tensor x, float eps) -> Tensor");
  m.def("to_length_one_backward(Tensor grad_y, Tensor x, float eps) -> Tensor");
  m.def("elu_to_length_one(Tensor x, float eps) -> Tensor");
  m.def("elu_to_length_one_backward(Tensor grad_y, Tensor x, float eps) -> Tensor");
  m.def("to_rms_one(Tensor x, float eps) -> Tensor");
  m.def("to_rms_one_backward(Tensor grad_y, Tensor x, float eps) -> Tensor");
  // The names of rules and maps in common/rules.h and maps.h.
  m.def("rules() -> str[]");
  m.def("feature_maps() -> str[]");
  m.def("cpu_capability() -> str");
  m.def("choose_cpu_capability(str name) -> ()");
}
