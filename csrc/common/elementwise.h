// Feature maps that apply one function to each number, for every device. A class D describes the device: D::Number is a
// float or a vector of floats, and D defines number(constant), where(condition, then, else) and exponential(x). The
// macro FWP_FUNCTION contains the qualifiers that functions need on the device. Each map has a Function with these
// members:
//
//     value(x)      the feature; NaN stays NaN
//     back(g, f)    the gradient of x, computed from the gradient g of the feature f = value(x)
//     monotonic     whether the function only rises or only falls
//     flat_at_zero  whether some features are 0, with slope 0 there, and none is negative
#pragma once

#include "maps.h"

#ifndef FWP_FUNCTION
#define FWP_FUNCTION inline
#endif

namespace fwp {

template <Map M> struct Function;

template <> struct Function<Map::identity> {
  static constexpr bool monotonic = true, flat_at_zero = false;
  template <class D> static FWP_FUNCTION typename D::Number value(typename D::Number x) { return x; }
  template <class D> static FWP_FUNCTION typename D::Number back(typename D::Number g, typename D::Number) { return g; }
};

// elu(x) + 1
template <> struct Function<Map::elu> {
  static constexpr bool monotonic = true, flat_at_zero = false;
  template <class D> static FWP_FUNCTION typename D::Number value(typename D::Number x) {
    // For x <= 0, elu(x) + 1 is exp(x); expm1(x) + 1 would be rounded twice.
    return D::where(x > D::number(0), x + D::number(1), D::exponential(x));
  }
  template <class D> static FWP_FUNCTION typename D::Number back(typename D::Number g, typename D::Number f) {
    return D::where(f > D::number(1), g, g * f);
  }
};

template <> struct Function<Map::relu> {
  static constexpr bool monotonic = true, flat_at_zero = true;
  template <class D> static FWP_FUNCTION typename D::Number value(typename D::Number x) {
    return D::where(x < D::number(0), D::number(0), x);
  }
  template <class D> static FWP_FUNCTION typename D::Number back(typename D::Number g, typename D::Number f) {
    return D::where(f <= D::number(0), D::number(0), g);
  }
};

#define FWP_IS(name) (map == Map::name && Function<Map::name>::monotonic) ||
constexpr bool monotonic(Map map) { return FWP_ELEMENTWISE(FWP_IS) false; }
#undef FWP_IS
#define FWP_IS(name) (map == Map::name && Function<Map::name>::flat_at_zero) ||
constexpr bool flat_at_zero(Map map) { return FWP_ELEMENTWISE(FWP_IS) false; }
#undef FWP_IS

}  // namespace fwp
