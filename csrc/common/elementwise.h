// Feature maps that are a function of one number, for every device. A device D says what a Number is (a float, a vector
// of them) and defines number(constant), where(condition, then, else) and exponential(x); FWP_FUNCTION qualifies
// functions.
//
//     value(x)   the feature; NaN stays NaN
//     back(g, f) the gradient of x, from that of the feature f = value(x)
//     rises      value never falls and is never negative, so the largest feature is that of the largest input
//     zero       value(0) == 0
//     linear     back(g, f) is g
//     exact      value(x) is x or 0, so it is of whatever type x is of
#pragma once

#include "maps.h"

#ifndef FWP_FUNCTION
#define FWP_FUNCTION inline
#endif

namespace fwp {

template <Map M> struct Function;

template <> struct Function<Map::identity> {
  static constexpr bool rises = false, zero = true, linear = true, exact = true;
  template <class D> static FWP_FUNCTION typename D::Number value(typename D::Number x) { return x; }
  template <class D> static FWP_FUNCTION typename D::Number back(typename D::Number g, typename D::Number) { return g; }
};

// elu(x) + 1
template <> struct Function<Map::elu> {
  static constexpr bool rises = true, zero = false, linear = false, exact = false;
  template <class D> static FWP_FUNCTION typename D::Number value(typename D::Number x) {
    // Not expm1 + 1: exp itself is what elu(x) + 1 rounds.
    return D::where(x > D::number(0), x + D::number(1), D::exponential(x));
  }
  template <class D> static FWP_FUNCTION typename D::Number back(typename D::Number g, typename D::Number f) {
    return D::where(f > D::number(1), g, g * f);
  }
};

template <> struct Function<Map::relu> {
  static constexpr bool rises = true, zero = true, linear = false, exact = true;
  template <class D> static FWP_FUNCTION typename D::Number value(typename D::Number x) {
    return D::where(x < D::number(0), D::number(0), x);
  }
  template <class D> static FWP_FUNCTION typename D::Number back(typename D::Number g, typename D::Number f) {
    return D::where(f <= D::number(0), D::number(0), g);
  }
};

}  // namespace fwp
