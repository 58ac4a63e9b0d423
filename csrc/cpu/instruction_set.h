// The instruction set that the headers of kernels are compiled for. A source file sets FWP_NAMESPACE, FWP_VECTOR_BYTES
// and FWP_TILE_ROWS, and FWP_TARGET for the instructions that the compiler may use; then it includes kernels.h.
// Everything that these headers define is inside that namespace, because a function shared with other files could be
// linked from here and fail on an older processor. For the same reason, the other headers that they need are included
// here, before the instructions are chosen, and only standard headers without functions are used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernel_table.h"

#ifndef FWP_NAMESPACE  // a header that is opened alone
#define FWP_NAMESPACE capability_default
#define FWP_VECTOR_BYTES 16
#define FWP_TILE_ROWS 4
#endif

#define FWP_PRAGMA(text) _Pragma(#text)
#if defined(FWP_TARGET) && defined(__clang__)
#define FWP_ATTRIBUTE(options) FWP_PRAGMA(clang attribute push(__attribute__((target(options))), apply_to = function))
FWP_ATTRIBUTE(FWP_TARGET)
#elif defined(FWP_TARGET)
#define FWP_OPTION(options) FWP_PRAGMA(GCC target(options))
FWP_OPTION(FWP_TARGET)  // to the end of the file: templates are compiled there
#endif

#define FWP_INLINE inline __attribute__((always_inline))
#define FWP_INLINE_LAMBDA __attribute__((always_inline))
#define FWP_FUNCTION FWP_INLINE

namespace fwp::FWP_NAMESPACE {
namespace {

using idx = std::ptrdiff_t;

constexpr idx round_up(idx x, idx to) { return (x + to - 1) / to * to; }

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
