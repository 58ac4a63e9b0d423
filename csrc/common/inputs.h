// The inputs of fast_weights and its backward, checked, for the glue of every device.
#pragma once

#include <array>
#include <string>
#include <utility>

#include "checks.h"
#include "maps.h"
#include "tensors.h"

namespace fwp {

FWP_DEFINE_WITH_MAP(inline, FWP_MAPS)

// The place of `name` in a table of names.
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

inline Width width_of(Map map, int64_t d_key, int64_t d_dot) {
  return with_map(map, [&](auto m) { return Width::of<m.value>(d_key, d_dot); });
}
// Called once, at the boundary: nowhere else does d_dot become offsets or rows of a projection.
inline Width checked_width(const char* op, Map map, int64_t d_key, int64_t d_dot) {
  const Width width = width_of(map, d_key, d_dot);
  TORCH_CHECK_VALUE(width.possible && (width.m == 0 || d_key > 0), op, ": d_dot = ", d_dot,
                    " is impossible for the feature map ", name_of(map), " with d_key = ", d_key);
  return width;
}

// A projection of shape `shape` (its sizes in any order) is there exactly where the map takes one.
inline void check_projection(const char* op, const OptionalTensor& x, Map map, at::IntArrayRef shape, bool taken,
                             const Tensor& q) {
  TORCH_CHECK_VALUE(taken == x.has_value(), op, ": projection is ", x ? "given" : "missing", " for the feature map ",
                    name_of(map));
  if (!x) return;
  check_shape(op, "projection", *x, shape);
  check_state(op, "projection", *x, q);
}

// A strength of the rule, a number for each position and head, is there exactly where the rule takes it.
inline void check_strength(const char* op, const char* name, const OptionalTensor& x, bool taken, Rule rule,
                           at::IntArrayRef shape, const Tensor& q) {
  TORCH_CHECK_VALUE(taken == x.has_value(), op, ": ", name, " is ", x ? "given" : "missing", " for the rule ",
                    name_of(rule));
  if (!x) return;
  check_shape(op, name, *x, shape);
  check_state(op, name, *x, q);
}

// A state, or gradients of one: W of shape `shape`, and z, which lacks the last dimension, exactly where the output is
// normalised.
inline void check_states(const char* op, const char* W_name, const char* z_name, const OptionalTensor& W,
                         const OptionalTensor& z, at::IntArrayRef shape, bool normalize_output, const Tensor& q) {
  if (W) {
    check_shape(op, W_name, *W, shape);
    check_state(op, W_name, *W, q);
  }
  TORCH_CHECK_VALUE((W && normalize_output) == z.has_value(), op, ": ", z_name, " is ", z ? "given" : "missing",
                    ", expected it exactly where ", W_name, " is given and the output is normalised");
  if (z) {
    check_shape(op, z_name, *z, shape.slice(0, shape.size() - 1));
    check_state(op, z_name, *z, q);
  }
}

// The arguments of the operator's schema that are not tensors.
struct Options {
  std::string rule, feature_map;
  int64_t d_dot;
  double input_scale;
  bool causal, both_ways, normalize_features, normalize_output;
  double eps;
};

// The inputs of forward and backward, checked, with a contiguous last dimension. The caller has checked q's type, and
// that q and k have four dimensions.
struct Inputs {
  const char* op;
  Tensor q, k, v;
  OptionalTensor beta, alpha, key_padding_mask, W, z, projection;
  Options options;
  Rule rule;
  Map map;
  Width width;

  Inputs(const char* op, const Tensor& given_q, const Tensor& given_k, const Tensor& given_v, const OptionalTensor& beta,
         const OptionalTensor& alpha, const OptionalTensor& key_padding_mask, const OptionalTensor& given_W,
         const OptionalTensor& given_z, const OptionalTensor& given_projection, Options o)
      : op(op), q(given_q), k(given_k), v(given_v), beta(beta), alpha(alpha), key_padding_mask(key_padding_mask),
        options(std::move(o)) {
    check_rank(op, "v", v, 4);
    check_shape(op, "q", q, {batch(), targets(), heads(), d_key()});
    check_shape(op, "v", v, {batch(), sources(), heads(), d_value()});
    check_like(op, "k", k, q);
    check_like(op, "v", v, q);
    TORCH_CHECK_VALUE(d_value() > 0, op, ": v is of width 0, expected 1 or more");
    TORCH_CHECK_VALUE(!options.causal || targets() == sources(), op, ": causal needs as many queries as keys, got T = ",
                      targets(), " and S = ", sources());
    TORCH_CHECK_VALUE(!options.both_ways || (options.causal && heads() % 2 == 0), op,
                      ": both_ways is true, expected it with causal and an even number of heads only");
    rule = rule_of(op, options.rule);
    map = map_of(op, options.feature_map);
    width = checked_width(op, map, d_key(), options.d_dot);
    check_strength(op, "beta", beta, rule != Rule::sum, rule, {batch(), sources(), heads()}, q);
    check_strength(op, "alpha", alpha, rule == Rule::gated_delta, rule, {batch(), sources(), heads()}, q);
    if (key_padding_mask) check_mask(op, "key_padding_mask", *key_padding_mask, {batch(), sources()}, q);
    check_projection(op, given_projection, map, {width.m, d_key()}, width.m > 0, q);
    check_states(op, "initial_W", "initial_z", given_W, given_z, state_shape(), options.normalize_output, q);
    // Copies are made of nothing but what has passed.
    for (Tensor* each : {&q, &k, &v}) *each = with_contiguous_rows(*each);
    projection = given_projection ? OptionalTensor(given_projection->contiguous()) : given_projection;
    W = whole(given_W);
    z = whole(given_z);
  }

  int64_t batch() const { return k.size(0); }
  int64_t heads() const { return k.size(2); }
  int64_t targets() const { return q.size(1); }
  int64_t sources() const { return k.size(1); }
  int64_t d_key() const { return k.size(3); }
  int64_t d_value() const { return v.size(3); }
  std::array<int64_t, 4> state_shape() const { return {batch(), heads(), options.d_dot, d_value()}; }

  // Room for a final state, W and z; empty where it is not wanted or has no z.
  std::pair<Tensor, Tensor> new_states(bool wanted) const {
    const std::array<int64_t, 4> shape = state_shape();
    const std::array<int64_t, 1> none = {0};
    const auto type = q.options().dtype(state_type(q));
    const at::IntArrayRef W = shape, z = W.slice(0, 3), nothing = none;
    return {at::empty(wanted ? W : nothing, type), at::empty(wanted && options.normalize_output ? z : nothing, type)};
  }

  // Fills in a device's Call.
  template <class C> void describe(C& c) const {
    const auto set = [](auto& to, auto x) { to = static_cast<std::remove_reference_t<decltype(to)>>(x); };
    c.rule = rule;
    c.map = map;
    set(c.nu, width.nu);
    set(c.m, width.m);
    set(c.input_scale, options.input_scale);
    c.causal = options.causal;
    c.normalize_features = options.normalize_features;
    c.normalize_output = options.normalize_output;
    set(c.eps, options.eps);
    set(c.batch, batch());
    set(c.heads, heads());
    set(c.targets, targets());
    set(c.sources, sources());
    set(c.d_key, d_key());
    set(c.d_value, d_value());
    set(c.d_dot, options.d_dot);
    point(c.projection, projection);
    point(c.q, q);
    point(c.k, k);
    point(c.v, v);
    point(c.beta, beta);
    point(c.alpha, alpha);
    point(c.key_padding_mask, key_padding_mask);
    point(c.initial_W, W);
    point(c.initial_z, z);
  }
};

}  // namespace fwp
