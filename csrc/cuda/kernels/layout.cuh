// How features are laid out in a block, as base rows of a token in slabs, and which rows a state has there.
#pragma once

#include "limits.h"
#include "numbers.cuh"

namespace fwp::gpu {

FWP_BOTH int slabs_of(const Call& c) {
  const int halves = c.m ? 2 : 1;
  return c.nu ? 1 : (c.d_dot / halves + c.base_rows / halves - 1) / (c.base_rows / halves);
}

// The number of the feature of base row i of a slab, with offsets in the block j = 1 .. nu; -1 if there is none.
FWP_BOTH int feature_number(const Call& c, int base_rows, int slab, int j, int i) {
  if (c.nu) return i < 2 * c.d_key ? (j - 1) * 2 * c.d_key + i : -1;
  if (!c.m) return slab * base_rows + i < c.d_dot ? slab * base_rows + i : -1;
  const int half = base_rows / 2, m = c.m, n = slab * half + i % half;
  return n >= m ? -1 : i < half ? n : m + n;
}

// A state in shared memory has a row for every base row of every slab or of every offset's block, so that the sixteen
// rows of a tile are neighbours.
FWP_BOTH int state_rows(const Call& c) { return c.base_rows * (c.nu ? c.nu : slabs_of(c)); }
FWP_DEVICE int feature_of_row(const Call& c, int row) {
  const int n = row / c.base_rows;
  return feature_number(c, c.base_rows, n, n + 1, row % c.base_rows);
}

}  // namespace fwp::gpu
