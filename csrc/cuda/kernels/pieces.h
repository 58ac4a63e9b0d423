// The backward of a call of several segments, whose segments run at the same time, as pieces. No torch header, no CUDA.
//
// A piece needs the state before it and the gradient of the state after it. These come first, each by walks from segment
// to segment, which do as little as possible; everything else is done for all pieces at once. In order:
//
//     write        walks over the keys and leaves states, as in a forward in pieces (launch_forward.h)
//     prepare      for each piece: what the next walk needs besides the gradient that it carries
//     walk         from the last piece to the first, for slice_columns columns of the state: leaves gradients of states
//     backward     for each piece: gradients of the inputs
//
// States need much room. Where that for all of them would be too large, the call is divided into groups of pieces: the
// first walk leaves the state after each group, and the groups follow one another, the last one first. A call that is
// not causal has groups of keys, and groups of queries, which read the state after all keys. launch_backward.h does all
// this; to the kernels, a group is a call like any other.
#pragma once

#include "call.h"

namespace fwp::gpu {

struct Pieces : Call {
  float* workspace;   // as many floats as workspace_of says, see launch_backward.h
  int resident_walk;  // as `resident`, for the walk

  // Of a group; W and z are the states after its pieces but for the last, one after the other. Gradients of states after
  // these pieces are (pieces - 1, B, H, d_dot, d_value). Those of z come in parts, one from each slice of columns, and
  // piece n has those of the state before it: (pieces, slices, B, H, d_dot).
  float *gradients_W, *gradients_z;
  float* notes;                   // what `prepare` leaves, see pieces.cuh
  int note_columns, note_blocks;  // columns of a block, and how many of them a note has
};

}  // namespace fwp::gpu
