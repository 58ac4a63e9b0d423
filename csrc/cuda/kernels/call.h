// One call of the operator as plain pointers: what host code hands to the kernels. No torch header, no CUDA.
#pragma once

#include <cstdint>

#include "../../common/maps.h"

namespace fwp::gpu {

enum class Type : int { float16, bfloat16, float32 };  // of q, k, v, out and their gradients
constexpr int bytes_of_element(Type type) { return type == Type::float32 ? 4 : 2; }

// The rules of common/maps.h that have kernels here, as RULES of fwp_fairseq/ops/native_cuda.py.
#define FWP_CUDA_RULES(EACH) EACH(sum) EACH(delta) EACH(gated) EACH(gated_delta)
#define FWP_OR_RULE(name) || rule == Rule::name
constexpr bool serves(Rule rule) { return false FWP_CUDA_RULES(FWP_OR_RULE); }
#undef FWP_OR_RULE

// The maps of common/maps.h likewise, as MAPS there.
#define FWP_CUDA_MAPS(EACH) EACH(identity) EACH(elu) EACH(relu) EACH(dpfp) EACH(favor)
#define FWP_OR_MAP(name) || map == Map::name
constexpr bool serves(Map map) { return false FWP_CUDA_MAPS(FWP_OR_MAP); }
#undef FWP_OR_MAP

// Calls f(RuleConstant<rule>{}), which starts a kernel; returns what it returns: null, or what is wrong.
template <Rule R> struct RuleConstant {
  static constexpr Rule value = R;
};
#define FWP_RULE_CASE(name) \
  case Rule::name: return f(RuleConstant<Rule::name>{});
template <class F> const char* with_rule(Rule rule, F f) {
  switch (rule) {
    FWP_CUDA_RULES(FWP_RULE_CASE)
    default: return "the call's rule is unknown";
  }
}
#undef FWP_RULE_CASE

// A (B, length, H, width) tensor, last dimension contiguous, other strides (in elements) free. Void: the call's type.
template <class V> struct Rows {
  V* data;
  int64_t batch, time, head;
  int aligned;  // rows begin at multiples of 16 bytes and are whole multiples of 8 elements
};

// Shapes: fwp_fairseq/ops/fast_weights.py. States and their gradients are contiguous floats: W (B, H, d_dot, d_value)
// and, where the output is normalised, z (B, H, d_dot). A pointer is null where a tensor is not given or not wanted.
struct Call {
  Rule rule;
  Map map;
  Type type;
  int nu, m;                // see Width
  const float* projection;  // (m, d_key), contiguous
  float input_scale;        // of the inputs that the projection is multiplied with
  int causal, normalize_features, normalize_output;
  float eps;
  int batch, heads, targets, sources, d_key, d_value, d_dot;
  int segment;   // most tokens that a block holds at a time, see limits.h and segment.cuh
  int together;  // with a projection: a block holds all features at once, not in slabs, see head.cuh
  int base_rows, base_end;  // features in a block, see limits.h
  int resident;  // forward: the state is in shared memory, see state.cuh; 0: no room, so it is in W

  Rows<const void> q, k, v;
  Rows<const float> beta, alpha;
  Rows<const unsigned char> key_padding_mask;  // (B, S) with head stride 0, nonzero at pads
  const float *initial_W, *initial_z;

  // In calls of several segments, a state that is not resident stands in W and z between segments, so these are always
  // given. The backward's W and z have several states, in a dimension before the others, see checkpoints and pieces.h;
  // checkpoints is 0 in the forward.
  Rows<void> out;
  float *W, *z;
  int checkpoints;  // segments of keys in a group, see segment.cuh

  // A forward in pieces (launch_forward.h): the states after all segments of keys but the last, one after the other.
  float *between_W, *between_z;
  // What launches leave for each other of each head and segment: features (noted.cuh), so many vectors of 16 bytes, the keys'
  // scales; the delta rule's T and E (inverse.cuh, forward.cuh).
  int feature_vectors;
  float *features_q, *features_k, *scales, *inverses, *missing;

  Rows<const void> grad_out;
  const float *grad_W, *grad_z;
  Rows<void> grad_q, grad_k, grad_v;
  Rows<float> grad_beta, grad_alpha;
  float *grad_initial_W, *grad_initial_z;
};

}  // namespace fwp::gpu
