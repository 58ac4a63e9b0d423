// Functions that all operators share: they find rules and maps by name, and check the gates, states and projections
// that these take.
#pragma once

#include <cmath>
#include <string>

#include "fields.h"
#include "maps.h"
#include "rules.h"

namespace fwp {

// Returns the index of `name` in a table of names.
template <class E, std::size_t count>
E named(const char* op, const char* what, const std::string& name, const char* const (&names)[count]) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) {
    if (name == names[i]) return static_cast<E>(i);
    all += (i == 0 ? "" : i + 1 < count ? ", " : " or ") + std::string(names[i]);
  }
  TORCH_CHECK_VALUE(false, op, ": ", what, " is ", name, ", expected ", all);
}
inline Rule rule_of(const char* op, const std::string& name) { return named<Rule>(op, "rule", name, rule_names); }
inline Map map_of(const char* op, const std::string& name) { return named<Map>(op, "feature_map", name, map_names); }

inline const char* name_of(Map map) { return map_names[static_cast<int>(map)]; }
inline const char* name_of(Rule rule) { return rule_names[static_cast<int>(rule)]; }

inline Width checked_width(const char* op, Map map, int64_t d_key, int64_t d_dot) {
  const Width width = width_of(map, d_key, d_dot);
  TORCH_CHECK_VALUE(width.possible, op, ": d_dot = ", d_dot, " is impossible for the feature map ", name_of(map),
                    " with d_key = ", d_key);
  return width;
}

// The factor of x in FAVOR+, which multiplies its projection by x' = d_key^-1/4 x.
inline double input_scale(int64_t d_key) { return std::pow(double(d_key), -0.25); }

// Sets a field of a call, whose type may be narrower than that of x.
template <class Field, class V> void set(Field& field, V x) { field = static_cast<Field>(x); }

// True for calls of devices whose kernels multiply by a projection.
template <class C, class = void> constexpr bool takes_projection = false;
template <class C> constexpr bool takes_projection<C, std::void_t<decltype(C::projection)>> = true;

// Checks that there is a projection if and only if the map takes one, and that it has this shape.
template <class V>
void projection(Fields& f, const OptionalTensor& x, V*& field, Map map, at::IntArrayRef shape, bool taken) {
  TORCH_CHECK_VALUE(taken == x.has_value(), f.op, ": projection is ", x ? "given" : "missing", " for the feature map ",
                    name_of(map));
  f.whole("projection", x, field, shape);
}

// Checks that there is a gate if and only if the rule takes it, and that it has this shape.
template <class R>
void gate(Fields& f, const char* name, const OptionalTensor& x, R& field, bool taken, Rule rule,
          at::IntArrayRef shape) {
  TORCH_CHECK_VALUE(taken == x.has_value(), f.op, ": ", name, " is ", x ? "given" : "missing", " for the rule ",
                    name_of(rule));
  if (x) f.gate(name, *x, field, shape);
}

// Checks a state, or the gradient of one. W has this shape, and z lacks its last dimension. There is a z if and only if
// there is a W and the output is normalised.
template <class V>
void states(Fields& f, const char* W_name, const char* z_name, const OptionalTensor& W, const OptionalTensor& z,
            V*& W_field, V*& z_field, at::IntArrayRef shape, bool normalize_output) {
  f.whole(W_name, W, W_field, shape);
  TORCH_CHECK_VALUE((W && normalize_output) == z.has_value(), f.op, ": ", z_name, " is ", z ? "given" : "missing",
                    ", expected it exactly where ", W_name, " is given and the output is normalised");
  f.whole(z_name, z, z_field, shape.slice(0, shape.size() - 1));
}

}  // namespace fwp
