// Feature maps that are a function of one number, for every device. A device D says what a Number is (a float, a vector
// of them) and defines number(constant), where(condition, then, else) and exponential(x); FWP_FUNCTION qualifies
// functions.
//
//     value(x)   the feature; NaN stays NaN
//     back(g, f) the gradient of x, from that of the feature f = value(x)
#pragma once

#include "maps.h"

#ifndef FWP_FUNCTION
#define FWP_FUNCTION inline
#endif

namespace fwp {

template <Map M> struct Function;

template <> struct Function<Map::identity> {
  template <class D> static FWP_FUNCTION typename D::Number value(typename D::Number x) { return x; }
  template <class D> static FWP_FUNCTION typename D::Number back(typename D::Number g, typename D::Number) { return g; }
};

// elu(x) + 1
template <> struct Function<Map::elu> {
  template <class D> static FWP_FUNCTION typename D::Number value(typename D::Number x) {
    // Not expm1 + 1: exp itself is what elu(x) + 1 rounds.
    return D::where(x > D::number(0), x + D::number(1), D::exponential(x));
  }
  template <class D> static FWP_FUNCTION typename D::Number back(typename D::Number g, typename D::Number f) {
    return D::where(f > D::number(1), g, g * f);
  }
};

template <> struct Function<Map::relu> {
  template <class D> static FWP_FUNCTION typename D::Number value(typename D::Number x) {
    return D::where(x < D::number(0), D::number(0), x);
  }
  template <class D> static FWP_FUNCTION typename D::Number back(typename D::Number g, typename D::Number f) {
    return D::where(f <= D::number(0), D::number(0), g);
  }
};

}  // namespace fwp
