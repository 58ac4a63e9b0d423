// Which piece a block has, and what the kernels of pieces.h leave for each other.
#pragma once

#include "pieces.h"
#include "state.cuh"

namespace fwp::gpu {

FWP_BOTH int pieces_of(const Call& c, int LT) {
  const int longer = c.targets > c.sources ? c.targets : c.sources;
  return longer ? segments_of(longer, LT) : 1;
}

// The gradient of the state after piece n, and that of the state before it in the columns of slice `slice`. Null: zeros,
// or not wanted.
FWP_DEVICE State<const float> gradient_after(const Pieces& c, int LT, int n) {
  if (n == pieces_of(c, LT) - 1) return {c.grad_W, c.grad_z};
  const int64_t rows = int64_t(c.batch) * c.heads * c.d_dot;
  return {c.gradients_W + n * rows * c.d_value, c.gradients_z ? c.gradients_z + (n + 1) * slices(c) * rows : nullptr};
}
FWP_DEVICE State<float> gradient_before(const Pieces& c, int n, int slice) {
  const int64_t rows = int64_t(c.batch) * c.heads * c.d_dot;
  return {n ? c.gradients_W + (n - 1) * rows * c.d_value : c.grad_initial_W,
          c.gradients_z ? c.gradients_z + (int64_t(n) * slices(c) + slice) * rows : nullptr};
}

// A group of queries alone has the same state before each piece.
FWP_DEVICE Segment piece(const Pieces& c, int LT, int head, int n) {
  const int first = n * LT;
  Segment p{};
  p.head = head;
  p.first = first;
  p.queries = clamp(c.targets - first, LT);
  p.keys = clamp(c.sources - first, LT);
  const int64_t rows = int64_t(c.batch) * c.heads * c.d_dot * (n - 1);
  const bool initial = n == 0 || !c.sources;
  p.before = initial ? State<const float>{c.initial_W, c.initial_z}
                     : State<const float>{c.W + rows * c.d_value, c.z ? c.z + rows : nullptr};
  if (c.sources || pieces_of(c, LT) == 1) p.gradient_after = gradient_after(c, LT, n);
  if (pieces_of(c, LT) == 1) p.gradient_before = {c.grad_initial_W, c.grad_initial_z};  // else the walk writes it
  return p;
}

// What `prepare` leaves of a piece: note_blocks blocks [LT][note_columns], and numbers of its queries and keys. The sum
// and the gated rule need dN alone, the delta rule without normalised outputs does not need `missing`.
template <int LT> struct Note {
  float *dden, *scale_q, *scale_k, *read_rate;  // [LT], names as in shared.cuh
  float *dN;                                    // the gradient of N
  float *read;                                  // P^T dN
  float *missing;                               // V - E
  FWP_DEVICE Note(const Pieces& c, int head, int n) {
    const int64_t block = LT * c.note_columns, floats = c.note_blocks * block + 4 * LT;
    dden = c.notes + (int64_t(head) * pieces_of(c, LT) + n) * floats;
    scale_q = dden + LT, scale_k = scale_q + LT, read_rate = scale_k + LT;
    dN = read_rate + LT, read = dN + block, missing = read + block;
  }
};

// Adds up the slices' parts of the gradients of z that piece n needs, and of the initial one. All threads; a barrier of the
// block must follow.
FWP_DEVICE void add_up_z(const Pieces& c, int LT, int head, int n, int threads) {
  if (!c.gradients_z || pieces_of(c, LT) == 1) return;
  const int parts = slices(c);
  const int64_t next = int64_t(c.batch) * c.heads * c.d_dot, first = int64_t(head) * c.d_dot;
  const auto sum = [&](const float* from, float* to) {
    for (int i = thread_index(); i < c.d_dot; i += threads) {
      float z = 0;
      FWP_ROLLED for (int k = 0; k < parts; ++k) z += from[k * next + first + i];
      to[first + i] = z;
    }
  };
  if (c.sources && n + 1 < pieces_of(c, LT)) {
    float* after = gradient_before(c, n + 1, 0).z;
    sum(after, after);
  }
  if (n == 0 && c.grad_initial_z) sum(gradient_before(c, 0, 0).z, c.grad_initial_z);
}

}  // namespace fwp::gpu
