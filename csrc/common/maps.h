// The update rules and feature maps that compiled code knows: their names, widths and constants, for every device, for
// operators and decoding. Kernels include this file, so it includes no header of torch or CUDA.
//
// A map is a line in FWP_MAPS and one of two things: a function of one number, which is a Function in elementwise.h and
// needs nothing else; or a Phi of its own for each device (cpu/maps, cuda/kernels/maps), with its Width here. FWP_CUDA_MAPS
// of cuda/kernels/call.h has those that CUDA kernels know; of the others they are given the features.
#pragma once

#include <cstdint>

namespace fwp {

// In the order of their numbers.
#define FWP_RULES(EACH) EACH(sum) EACH(delta) EACH(gated) EACH(gated_delta)
#define FWP_MAPS(EACH) EACH(identity) EACH(elu) EACH(relu) EACH(exp) EACH(dpfp) EACH(favor) EACH(softmax_pair)

#define FWP_ENUMERATOR(name) name,
enum class Rule : int { FWP_RULES(FWP_ENUMERATOR) };
enum class Map : int { FWP_MAPS(FWP_ENUMERATOR) };
#undef FWP_ENUMERATOR

#define FWP_NAME(name) #name,
constexpr const char *rule_names[] = {FWP_RULES(FWP_NAME)}, *map_names[] = {FWP_MAPS(FWP_NAME)};
#undef FWP_NAME

// A rule that corrects takes away what the key held; one that decays leaves a share of all earlier content.
constexpr bool corrects(Rule rule) { return rule == Rule::delta || rule == Rule::gated_delta; }
constexpr bool decays(Rule rule) { return rule == Rule::gated || rule == Rule::gated_delta; }

template <Map M> struct MapConstant {
  static constexpr Map value = M;
};
struct AllMaps {
  template <Map M> static constexpr bool has = true;
};

// Defines with_map(map, f), which returns f(MapConstant<the map>{}); of the maps of a list like FWP_MAPS that Some has. A
// macro, because each device and each instruction set needs a function of its own, with its own qualifiers.
#define FWP_MAP_CASE(name)                  \
  if constexpr (Some::template has<Map::name>) \
    if (map == Map::name) return f(MapConstant<Map::name>{});
#define FWP_DEFINE_WITH_MAP(qualifiers, MAPS)                                                  \
  template <class Some = AllMaps, class F> qualifiers decltype(auto) with_map(Map map, F f) {  \
    MAPS(FWP_MAP_CASE)                                                                         \
    __builtin_unreachable();                                                                   \
  }

// What the width of a map's features means. The defaults are those of maps that take each input by itself.
struct Width {
  bool possible;         // whether the map can have features of this width
  std::int64_t nu = 0;   // offsets: features are products of base features with these rolled by 1 .. nu
  std::int64_t m = 0;    // rows of the projection that the map takes
  std::int64_t d_cached;  // width of what decoding keeps of a key: its features, or where nu > 0 the key itself

  template <Map M> static Width of(std::int64_t d_key, std::int64_t d_dot) { return {d_dot == d_key, 0, 0, d_dot}; }
};
// DPFP: nu blocks of 2 d_key features. With nu = 2 d_key a feature would meet itself.
template <> inline Width Width::of<Map::dpfp>(std::int64_t d_key, std::int64_t d_dot) {
  const std::int64_t n = 2 * d_key, nu = n > 0 ? d_dot / n : 0;
  return {nu > 0 && d_dot == nu * n && nu < n, nu, 0, d_key};
}
// FAVOR+: m features exp(R x' - ..) and m features exp(-R x' - ..).
template <> inline Width Width::of<Map::favor>(std::int64_t, std::int64_t d_dot) {
  return {d_dot > 0 && d_dot % 2 == 0, 0, d_dot / 2, d_dot};
}

// Hedgehog's features of W x: softmax(W x) and softmax(-W x).
template <> inline Width Width::of<Map::softmax_pair>(std::int64_t d_key, std::int64_t d_dot) {
  return {d_dot > 0 && d_dot == 2 * d_key, 0, 0, d_dot};
}

// Of exp and FAVOR+, as fwp_fairseq/feature_maps/favor.py has it: larger ones are clipped.
constexpr float largest_exponent = 30;

}  // namespace fwp
