// The feature maps' own parts of the kernels.
#pragma once

#include "maps/dpfp.cuh"
#include "maps/elementwise.cuh"
#include "maps/favor.cuh"

namespace fwp::gpu {

// Whether the map has offsets. Decoding kernels that ask for nu itself need more registers.
#define FWP_ROLLS(name) \
  if (map == Map::name) return Phi<Map::name>::rolls;
FWP_BOTH bool has_offsets(Map map) {
  FWP_CUDA_MAPS(FWP_ROLLS)
  return false;
}
#undef FWP_ROLLS

}  // namespace fwp::gpu
