// One call of the decoding operators as plain pointers, which host code passes to the kernels. No torch header, no
// CUDA.
#pragma once

#include "call.h"

namespace fwp::gpu {

// Shapes and meaning as in fwp_fairseq/ops/decoding.py. Gates, the projection and states are float. Storage and states
// are contiguous. Null where not given.
struct DecodeCall {
  Rule rule;
  Map map;
  Type x_type;  // of q, k and cached keys
  Type type;  // of v, out and `written`
  int nu, m;                // see Width
  const float* projection;  // (d_key, m)
  float input_scale;        // of the inputs that the projection is multiplied with
  int normalize_features, normalize_output;
  float eps;
  int rows, heads, tokens, stored, states, count;  // stored: rows of storage; states: rows of W
  int d_key, d_value, d_dot, d_cached;

  Rows<const void> q, k, v;  // k, v: null where nothing is written
  Rows<const float> beta, alpha;
  Rows<const unsigned char> key_padding_mask;  // (R, T) with head stride 0, nonzero at pads
  Rows<void> out;

  void *keys, *written;
  float* strengths;  // under rules that decay
  int* ancestors;  // null: position j of row r lies in row state_rows[r]
  int64_t ancestors_ld;
  const int* state_rows;
  const float *W, *z;
  float *new_W, *new_z;  // fold
};

// `stream` is a cudaStream_t. Returns null or an error message.
const char* start_decode(const DecodeCall& call, void* stream);
const char* start_fold(const DecodeCall& call, void* stream);
int decode_bytes(const DecodeCall& call);  // of shared memory of a block

}  // namespace fwp::gpu
