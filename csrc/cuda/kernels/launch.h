// The kernels as host functions, for launch.cpp and for the tests' library. `stream` is a cudaStream_t. Null is
// returned, or what is wrong. Kernel sources do not include this file: each of them would compile every instance.
#pragma once

#include <algorithm>
#include <type_traits>

#include "limits.h"
#include "pieces.h"

namespace fwp::gpu {

struct Half;  // the two precisions, see operands.cuh
struct Single;

// Instances, each in a source file of its own so that they compile at the same time.
template <class P> int bytes_of(const Call& call, bool backward);
template <class P> int walk_bytes_of(const Call& call);
template <class P, Rule R, Kind K> const char* launch_forward(const Call& call, void* stream);
template <class P, Rule R, Kind K> const char* launch_keys(const Call& call, void* stream);
template <class P, Rule R, Kind K> const char* launch_write(const Call& call, void* stream);
template <class P, Rule R, Kind K> const char* launch_read(const Call& call, void* stream);
template <class P, Rule R, Kind K> const char* launch_preparation(const Pieces& call, void* stream);
template <class P, Rule R, Kind K> const char* launch_walk(const Pieces& call, void* stream);
template <class P, Rule R, Kind K> const char* launch_backward(const Pieces& call, void* stream);

// Calls f(operation, kind) with the call's as types.
template <class P, Rule R> struct Operation {
  using Precision = P;
  static constexpr Rule rule = R;
};
template <Kind K> struct OfKind {
  static constexpr Kind kind = K;
};
template <class P, class F> const char* with_instance(const Call& call, F f) {
  return with_rule(call.rule, [&](auto rule) {
    constexpr Rule R = decltype(rule)::value;
    const auto checked = [&](auto kind) -> const char* {
      if constexpr (has_instance(R, decltype(kind)::kind, std::is_same_v<P, Single>)) return f(Operation<P, R>{}, kind);
      else return "no instance";  // kind_of never asks for it
    };
    switch (kind_of(call)) {
      case Kind::plain: return checked(OfKind<Kind::plain>{});
      case Kind::favor: return checked(OfKind<Kind::favor>{});
      case Kind::state: return checked(OfKind<Kind::state>{});
      case Kind::general: return checked(OfKind<Kind::general>{});
    }
    return checked(OfKind<Kind::general>{});
  });
}
template <class F> const char* with_instance(const Call& call, F f) {
  return call.type == Type::float32 ? with_instance<Single>(call, f) : with_instance<Half>(call, f);
}

// Bytes of shared memory of a block.
inline int bytes(const Call& call, bool backward) {
  return call.type == Type::float32 ? bytes_of<Single>(call, backward) : bytes_of<Half>(call, backward);
}
inline int walk_bytes(const Call& call) {
  return call.type == Type::float32 ? walk_bytes_of<Single>(call) : walk_bytes_of<Half>(call);
}

// Sets what depends on the device, the members `segment` to `resident`, for blocks with at most `limit` bytes of shared
// memory. The pointers to the states that the caller wants must already be set.
inline void fit(Call& call, bool backward, int limit) {
  call.segment = longest_block(call.rule, backward);
  call.together = call.type != Type::float32;
  call.resident = 1;
  lay_features(call, backward);
  if (!serves_states(kind_of(call)) && bytes(call, backward) <= limit) return;
  call.segment = short_segment;
  call.together = 0;
  lay_features(call, backward);
  if (!backward) call.resident = bytes(call, false) <= limit;
}

// ---- room ----

inline int segments_of(const Call& call, int tokens) { return (tokens + call.segment - 1) / call.segment; }
inline int key_segments_of(const Call& call) { return std::max(1, segments_of(call, call.sources)); }
inline int64_t heads_of(const Call& call) { return int64_t(call.batch) * call.heads; }
inline int slices_of(const Call& call) { return std::max(1, (call.d_value + slice_columns - 1) / slice_columns); }
inline int64_t floats_of_W(const Call& call) { return heads_of(call) * call.d_dot * call.d_value; }
inline int64_t floats_of_z(const Call& call) { return call.normalize_output ? heads_of(call) * call.d_dot : 0; }

constexpr int64_t largest_workspace = int64_t(1) << 28;  // floats: a gibibyte

// Hands out a workspace part by part, as wide accesses want it. Null if there are none of a part.
struct Workspace {
  float* base;
  int64_t used = 0;
  void take(float*& pointer, int64_t floats) {
    pointer = floats ? base + used : nullptr;
    used += (floats + 3) / 4 * 4;
  }
};

}  // namespace fwp::gpu
