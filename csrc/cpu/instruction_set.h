// The kernels for one instruction set. A source file sets FWP_NAMESPACE, FWP_VECTOR_BYTES and FWP_TILE_ROWS, FWP_TARGET for
// the instructions that the compiler may use, and FWP_RECURRENCE for the recurrences instead of the others; then it includes
// this. Everything is inside the namespace: a function shared with other files could be linked from here and fail on an older
// processor. So no standard header is included but those without functions.
#include <cstddef>
#include <cstdint>
#include <utility>

#include "decode_call.h"
#include "recurrence_call.h"
#include "row_functions_call.h"
#include "slots_call.h"
#include "window_call.h"

#define FWP_PRAGMA(text) _Pragma(#text)
#if defined(FWP_TARGET) && defined(__clang__)
#define FWP_ATTRIBUTE(options) FWP_PRAGMA(clang attribute push(__attribute__((target(options))), apply_to = function))
FWP_ATTRIBUTE(FWP_TARGET)
#elif defined(FWP_TARGET)
#define FWP_OPTION(options) FWP_PRAGMA(GCC target(options))
FWP_OPTION(FWP_TARGET)  // to the end of the file: templates are compiled there
#endif

namespace fwp {
namespace FWP_NAMESPACE {
namespace {

using idx = std::ptrdiff_t;
#define FWP_INLINE inline __attribute__((always_inline))
#define FWP_INLINE_LAMBDA __attribute__((always_inline))

constexpr idx round_up(idx x, idx to) { return (x + to - 1) / to * to; }

#include "simd.h"
#include "rows.h"
#ifdef FWP_RECURRENCE
#include "recurrence.h"
#include "lstm.h"
#else
#include "product.h"
#define FWP_FUNCTION FWP_INLINE
#include "../common/elementwise.h"
#include "side.h"
#include "maps/elementwise.h"
#include "maps/dpfp.h"
#include "softmax_pair.h"
#include "maps/favor.h"
#include "maps/softmax_pair.h"
#include "feature_map.h"
#include "plan.h"
#include "head.h"
#include "head_backward.h"
#include "kernels.h"
#include "decode.h"
#include "window.h"
#include "slots.h"
#include "unit_rows.h"
#include "row_functions.h"
#endif  // FWP_RECURRENCE

}  // namespace

#if defined(FWP_RECURRENCE)
const RecurrenceKernels<float>& recurrence_kernels_of(float) { return recurrence_kernels<float>; }
const RecurrenceKernels<double>& recurrence_kernels_of(double) { return recurrence_kernels<double>; }
#else
const Kernels<float>& kernels_of(float) { return kernels<float>; }
const Kernels<double>& kernels_of(double) { return kernels<double>; }
const DecodeKernels<float>& decode_kernels_of(float) { return decode_kernels<float>; }
const DecodeKernels<double>& decode_kernels_of(double) { return decode_kernels<double>; }
const WindowKernels<float>& window_kernels_of(float) { return window_kernels<float>; }
const WindowKernels<double>& window_kernels_of(double) { return window_kernels<double>; }
const SlotsKernels<float>& slots_kernels_of(float) { return slots_kernels<float>; }
const SlotsKernels<double>& slots_kernels_of(double) { return slots_kernels<double>; }
const RowFunctions<float>& row_functions_of(float) { return row_functions<float>; }
const RowFunctions<double>& row_functions_of(double) { return row_functions<double>; }
#endif

}  // namespace FWP_NAMESPACE
}  // namespace fwp

#if defined(FWP_TARGET) && defined(__clang__)
#pragma clang attribute pop
#endif
