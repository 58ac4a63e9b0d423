// The kernels for one instruction set: a source file sets FWP_NAMESPACE, FWP_VECTOR_BYTES and FWP_TILE_ROWS, asks the
// compiler for the instructions, and includes this. Everything is inside the namespace: a function shared with other
// files could be linked from here and fail on an older processor. So no standard header but those without functions.

namespace fwp {
namespace FWP_NAMESPACE {
namespace {

using idx = std::ptrdiff_t;
#define FWP_INLINE inline __attribute__((always_inline))
#define FWP_INLINE_LAMBDA __attribute__((always_inline))

constexpr idx round_up(idx x, idx to) { return (x + to - 1) / to * to; }

#include "simd.h"
#include "product.h"
#include "feature_map.h"
#include "kernels.h"

}  // namespace

const Kernels<float>& kernels_of(float) { return kernels<float>; }
const Kernels<double>& kernels_of(double) { return kernels<double>; }

}  // namespace FWP_NAMESPACE
}  // namespace fwp
