// One call of the operator as plain pointers, which host code passes to the kernels. No torch header, no CUDA.
#pragma once

#include <cstdint>

#include "../../common/maps.h"
#include "../../common/rules.h"

namespace fwp::gpu {

enum class Type : int { float16, bfloat16, float32 };

constexpr int round_up(int x, unsigned to) { return int((x + to - 1) / to * to); }  // x is not negative

// A (B, length, H, width) tensor, last dimension contiguous, other strides (in elements) free. Void: a type of the call.
template <class V> struct Rows {
  V* data;
  int64_t batch, time, head;
  int aligned;  // rows begin at multiples of 16 bytes and are whole multiples of 8 elements
};

// Operands of matrix products: halves, and for each block of 16 x 16 the power of two by which they are multiplied.
struct Halves {
  uint16_t* numbers;
  float* powers;
};

constexpr int chunk = 64;  // tokens, features or columns of values that a block of threads processes at once

// Shapes: fwp_fairseq/ops/fast_weights.py. States and their gradients are contiguous floats: W (B, H, d_dot, d_value)
// and, where the output is normalised, z (B, H, d_dot). A pointer is null if its tensor is not given or not needed.
struct Call {
  Rule rule;
  Map map;
  Type x_type;  // of q, k and their gradients
  Type type;  // of v, out and their gradients, of 2 bytes
  int nu;  // see Width
  int backward;  // whether this is the backward pass
  int causal, both_ways, normalize_features, normalize_output;
  float eps;
  int batch, heads, targets, sources, d_key, d_value, d_dot;

  Rows<const void> q, k, v;
  Rows<const float> beta, alpha;
  Rows<const unsigned char> key_padding_mask;  // (B, S) with head stride 0, nonzero at pads
  const float *initial_W, *initial_z;
  Rows<void> out;
  float *W, *z;

  Rows<const void> grad_out;
  const float *grad_W, *grad_z;
  Rows<void> grad_q, grad_k, grad_v;
  Rows<float> grad_beta, grad_alpha;
  float *grad_initial_W, *grad_initial_z;

  // The workspace through which launches communicate (`lay` in launches.h), for the `group` heads from first_head on,
  // numbered b H + h. Its matrices have multiples of 16 rows and columns. The columns of values, from first_value on,
  // follow those of z, of which only the first two are used; they are equal.
  int first_head, group;
  int slice, slices;  // the first slice of columns that this launch processes, and how many
  int split_walk;  // whether the walk has a block per tile of features: for few heads, if the rule does not correct
  int walk_width;  // values in a slice of the walks; fewer if there are few heads
  Halves x_q, x_k;  // (length, inputs): inputs of features, tokens in the head's order
  float* x_scales;  // under DPFP, the factors of x that normalise features; queries, then keys
  Halves inverse;  // (chunks, 64, 64): T of each chunk
  Halves written;  // (length, columns): U
  Halves states;  // (chunks, features, columns): W and z before each chunk
  float* carried;  // (features, columns): the present state of a walk, or its gradient
  float *rates, *norms;  // (length): factors of old values, and the inverses of their denominators
  // In the backward pass, gradients:
  Halves grad_read;  // of numerators and denominators
  Halves grad_rows;  // dR or, if the rule does not correct, dU
  Halves grad_states;  // of the states after each chunk
  float* grad_written;  // dU before walk_back
  float *grad_x_q, *grad_x_k;  // of the inputs of features
  float *grad_norms, *grad_decay;  // of the keys' denominators; of decays (chunks, 64, 65)
};

constexpr int chunks_of(const Call& c) { return c.sources > 0 ? (c.sources + chunk - 1) / chunk : 1; }
constexpr int query_chunks_of(const Call& c) { return (c.targets + chunk - 1) / chunk; }
constexpr int key_rows(const Call& c) { return c.sources > 0 ? round_up(c.sources, 16) : 16; }
constexpr int query_rows(const Call& c) { return round_up(c.targets, 16); }

constexpr bool is_dpfp(const Call& c) { return c.map == Map::dpfp; }
// Under DPFP, features are computed where they are used (dpfp.cuh), in parts of 32 columns. A part has one group of 8
// inputs and two j if nu is even, else two groups and one j.
constexpr int groups_of(const Call& c) { return (c.d_key + 7) >> 3; }
constexpr int before_x(const Call& c) { return round_up(c.nu, 8); }  // numbers stored before x_0
constexpr int parts_of_j(const Call& c) { return c.nu % 2 == 0 ? groups_of(c) : (groups_of(c) + 1) >> 1; }
constexpr int parts_of(const Call& c) { return parts_of_j(c) * (c.nu % 2 == 0 ? c.nu >> 1 : c.nu); }
constexpr int features_of(const Call& c) { return is_dpfp(c) ? 32 * parts_of(c) : round_up(c.d_dot, 16); }
// How many inputs the features of a token have: under DPFP x and the numbers before it, else the features themselves.
constexpr int inputs_of(const Call& c) { return is_dpfp(c) ? before_x(c) + 8 * groups_of(c) : features_of(c); }
constexpr int feature_tiles_of(const Call& c) { return (features_of(c) + chunk - 1) / chunk; }
constexpr int first_value(const Call& c) { return c.normalize_output ? 16 : 0; }
constexpr int columns_of(const Call& c) { return first_value(c) + round_up(c.d_value, 16); }
// Slices of columns: one for z, if there is a z, and then one for every 64 values.
constexpr int first_slice(const Call& c) { return c.normalize_output ? 1 : 0; }
constexpr int slices_of(const Call& c) { return first_slice(c) + (c.d_value + chunk - 1) / chunk; }
constexpr int walk_slices_of(const Call& c) { return first_slice(c) + (c.d_value + c.walk_width - 1) / c.walk_width; }

// Blocks of the walk for each slice: if the rule does not correct, the features of a state do not depend on each other.
constexpr int walks_of(const Call& c) { return c.split_walk ? feature_tiles_of(c) : 1; }
// Blocks of `outputs` for each head. If several chunks of queries contribute to the gradient of the same U, one block
// adds it up.
constexpr int outputs_of(const Call& c) {
  return c.backward && !c.causal && query_chunks_of(c) > 1 ? 1 : query_chunks_of(c);
}
// Rows of a block's tiles, which are half as many as its threads: 32 if there are no more tokens and no states, so that
// twice as many blocks run at once.
constexpr int block_rows(const Call& c) {
  const bool states = c.initial_W || c.W || c.grad_W || decays(c.rule);
  return !states && key_rows(c) <= 32 && query_rows(c) <= 32 ? 32 : chunk;
}
// Returns true if the rates of keys depend on z. The walk of z then comes before `keys`, and in the backward pass, the
// gradient of z is complete only after that of keys (backward.cuh).
constexpr bool rates_depend_on_z(const Call& c) { return corrects(c.rule) && c.normalize_output; }

// The steps of a forward and of a backward pass, in the sources of instances/. `stream` is a cudaStream_t. They return
// null or an error message.
enum class Stage { rows, rows_back, walk, keys, outputs, walk_back, chunks_back };
const char* run_rows(Stage step, const Call& call, void* stream);
const char* run_forward(Stage step, const Call& call, void* stream);
const char* run_backward(Stage step, const Call& call, void* stream);
// Sentences in one launch: the forward pass of up to 128 tokens, the backward pass of up to 64. bytes_of_short is the
// shared memory of a block.
constexpr int most_forward_tokens = 128, most_backward_tokens = 64;
constexpr int short_rows(const Call& c) {
  const int tokens = c.targets > c.sources ? c.targets : c.sources;
  return tokens <= 32 ? 32 : tokens <= 64 ? 64 : 128;
}
const char* run_short(const Call& call, void* stream);
int bytes_of_short(const Call& call);
int bytes_of_rows(const Call& call);  // of shared memory of a block, the most of all steps
int bytes_of_block(const Call& call);
const char* missing_code();  // the reason why the device cannot run the kernels, or null

}  // namespace fwp::gpu
