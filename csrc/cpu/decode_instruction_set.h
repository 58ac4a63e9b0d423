// The decoding kernels for one instruction set; see instruction_set.h, which does the same for the others.

namespace fwp {
namespace FWP_NAMESPACE {
namespace {

using idx = std::ptrdiff_t;
#define FWP_INLINE inline __attribute__((always_inline))
#define FWP_INLINE_LAMBDA __attribute__((always_inline))

constexpr idx round_up(idx x, idx to) { return (x + to - 1) / to * to; }

#include "simd.h"
#include "product.h"
#define FWP_FUNCTION FWP_INLINE
#include "../common/elementwise.h"
#include "side.h"
#include "maps/elementwise.h"
#include "maps/dpfp.h"
#include "maps/favor.h"
#include "decode.h"

}  // namespace

const DecodeKernels<float>& decode_kernels_of(float) { return decode_kernels<float>; }
const DecodeKernels<double>& decode_kernels_of(double) { return decode_kernels<double>; }

}  // namespace FWP_NAMESPACE
}  // namespace fwp
