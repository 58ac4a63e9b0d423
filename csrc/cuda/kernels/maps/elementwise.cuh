// phi: what every map defines, and the maps that are a function of one number.
//
//     rolls, projects      whether the map has offsets (Width::nu), or a projection (Width::m)
//     factor(unit, d_dot)  of a token: its features over what stands in shared memory or is multiplied from it
//     decode_count(c), decode(c, x, phi, i)  decoding: a token's features phi from its inputs x, in so many parts
//
// and without a projection, where base rows are made of one input each:
//
//     rises, of_largest(x) whether the largest base feature is that of the largest input (else: of the largest absolute
//                          value), and what it is
//     zero                 whether an input 0 has only features 0
//     base<P>(y, scaled, put, d_key)  base rows of a pair of inputs: put(pair, further), `further` rows behind the inputs'
//
// and where features are made of one input each, too: linear, back(g, x), the gradient of an input from its feature's.
#pragma once

#include "../numbers.cuh"
#include "../operands.cuh"

#define FWP_FUNCTION FWP_DEVICE
#include "../../../common/elementwise.h"

namespace fwp::gpu {

FWP_DEFINE_WITH_MAP(FWP_DEVICE, FWP_CUDA_MAPS)

struct OfFloats {  // the device of common/elementwise.h
  using Number = float;
  static FWP_DEVICE float number(float x) { return x; }
  static FWP_DEVICE float where(bool condition, float a, float b) { return condition ? a : b; }
  static FWP_DEVICE float exponential(float x) { return gpu::exponential(x); }
};

template <Map M> struct Phi : Function<M> {
  static constexpr bool rolls = false, projects = false;

  static FWP_DEVICE float value(float x) { return Function<M>::template value<OfFloats>(x); }
  static FWP_DEVICE float back(float g, float x) { return Function<M>::template back<OfFloats>(g, value(x)); }
  static FWP_DEVICE float factor(float unit, int) { return unit; }
  static FWP_DEVICE float of_largest(float x) { return Function<M>::rises ? value(x) : x; }

  template <class P, class S, class F> static FWP_DEVICE void base(Float2 y, S scaled, F put, int) {
    put(scaled({value(y.x), value(y.y)}), 0);
  }

  template <class C> static FWP_DEVICE int decode_count(const C& c) { return c.d_dot; }
  template <class C> static FWP_DEVICE void decode(const C&, const float* x, float* phi, int i) { phi[i] = value(x[i]); }
};

}  // namespace fwp::gpu
