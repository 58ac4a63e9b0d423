// How features are laid out in a block: base rows of a token, in slabs; and the rows that a state has there.
#pragma once

#include "limits.h"
#include "numbers.cuh"

namespace fwp::gpu {

// Base rows in shared memory: at most slab_rows, but for DPFP, which needs all 2 d_key.
FWP_BOTH int resident_rows(const Call& c) {
  const int m = c.d_dot / 2;
  if (c.map == Map::dpfp) return round_up(2 * c.d_key, 16);
  if (c.map == Map::favor) return 2 * (m < slab_rows / 2 ? round_up(m, 16) : slab_rows / 2);
  return c.d_dot < slab_rows ? round_up(c.d_dot, 16) : slab_rows;
}
FWP_BOTH int slabs_of(const Call& c) {
  const int halves = c.map == Map::favor ? 2 : 1;
  return c.map == Map::dpfp ? 1 : (c.d_dot / halves + resident_rows(c) / halves - 1) / (resident_rows(c) / halves);
}
// DPFP's base rows go on at both ends as they come round, so that a rolled row is found without looking where it wraps:
// for r_{i-j} before the first row, for r_{i+s} of the backward and the last 16 rows behind the last one.
FWP_BOTH int rows_before(const Call& c) { return c.map == Map::dpfp ? c.nu : 0; }
FWP_BOTH int rows_end(const Call& c, bool backward) {
  const int needed = backward && c.map == Map::dpfp ? c.d_key + round_up(c.d_key, 16) + c.nu : 0;
  return needed > resident_rows(c) ? needed : resident_rows(c);
}

// Number of a feature, or -1 if there is none: of base row i of a slab, in DPFP's block j = 1 .. nu.
FWP_BOTH int feature_number(const Call& c, int base_rows, int slab, int j, int i) {
  if (c.map == Map::dpfp) return i < 2 * c.d_key ? (j - 1) * 2 * c.d_key + i : -1;
  if (c.map != Map::favor) return slab * base_rows + i < c.d_dot ? slab * base_rows + i : -1;
  const int half = base_rows / 2, m = c.d_dot / 2, n = slab * half + i % half;
  return n >= m ? -1 : i < half ? n : m + n;
}

// A state in shared memory has a row for every base row of every slab or of DPFP's blocks, so that sixteen that belong
// together are neighbours.
FWP_BOTH int state_rows(const Call& c) { return resident_rows(c) * (c.map == Map::dpfp ? c.nu : slabs_of(c)); }
FWP_DEVICE int feature_of_row(const Call& c, int row) {
  const int base_rows = resident_rows(c), n = row / base_rows;
  return feature_number(c, base_rows, n, n + 1, row % base_rows);
}

}  // namespace fwp::gpu
