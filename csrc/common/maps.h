// The names, widths and constants of the feature maps in compiled code. Operators and kernels of every device include
// this file, so it includes no header of torch or CUDA.
//
// There are two kinds of maps. A map that applies one function to each number needs only its name in FWP_ELEMENTWISE
// and a Function in elementwise.h. Any other map needs its name in FWP_MAPS, its width in width_of, and code for each
// device (cpu/maps, cuda/README.md).
#pragma once

#include <cstdint>

#include "names.h"

namespace fwp {

// The numbers of maps follow this order. A test compares the list with fwp_fairseq/feature_maps.
#define FWP_ELEMENTWISE(EACH) EACH(identity) EACH(elu) EACH(relu)
#define FWP_MAPS(EACH) FWP_ELEMENTWISE(EACH) EACH(dpfp) EACH(favor) EACH(softmax_pair)

enum class Map : int { FWP_MAPS(FWP_ENUMERATOR) };
constexpr const char* map_names[] = {FWP_MAPS(FWP_NAME)};

constexpr bool elementwise(Map map) {
#define FWP_IS(name) map == Map::name ||
  return FWP_ELEMENTWISE(FWP_IS) false;
#undef FWP_IS
}

// The parameters of a map that follow from the number of its features.
struct Width {
  bool possible;  // true if the map can have this number of features
  std::int64_t nu, m;  // number of offsets of DPFP, else 0; number of rows of FAVOR+'s projection, else 0
  std::int64_t d_cached;  // width of what decoding keeps of a key: its features or, as DPFP, the key itself
};

// Called once for each call of an operator; nothing else converts d_dot to nu or m.
inline Width width_of(Map map, std::int64_t d_key, std::int64_t d_dot) {
  if (map == Map::dpfp) {  // nu blocks of 2 d_key features; with nu = 2 d_key a feature would be multiplied by itself
    const std::int64_t n = 2 * d_key, nu = n > 0 ? d_dot / n : 0;
    return {nu > 0 && d_dot == nu * n && nu < n, nu, 0, d_key};
  }
  if (map == Map::favor)  // m features exp(R x' - ..) and m features exp(-R x' - ..)
    return {d_key > 0 && d_dot > 0 && d_dot % 2 == 0, 0, d_dot / 2, d_dot};
  if (map == Map::softmax_pair)  // softmax(W x) and softmax(-W x)
    return {d_dot > 0 && d_dot == 2 * d_key, 0, 0, d_dot};
  return {d_dot == d_key, 0, 0, d_dot};  // one feature for each input
}

// The largest exponent of FAVOR+'s features and of the gain g of a window (cpu/window.h); larger ones are clipped.
// fwp_fairseq/feature_maps/favor.py has the same number.
constexpr float largest_exponent = 30;

}  // namespace fwp
