// read_source on the CPU: checks the inputs, allocates the result, and runs one task for each head of a source.
#include <torch/library.h>

#include "capability.h"
#include "glue.h"

namespace fwp {
namespace {

Tensor read_source(const Tensor& q, const Tensor& keys, const Tensor& values, const OptionalTensor& key_padding_mask) {
  static constexpr char op[] = "fwp::read_source";
  Tensor out;
  const auto describe = [&](Fields& f, auto& c) {
    check_rank(op, "q", q, 4);
    check_rank(op, "values", values, 4);
    const int64_t N = q.size(0), T = q.size(1), H = q.size(2), d = q.size(3), S = values.size(2);
    TORCH_CHECK_VALUE(S >= 1, op, ": values has no position, expected at least 1");
    c.batch = N, c.heads = H, c.targets = T, c.sources = S, c.d = d, c.d_value = values.size(3);
    f.rows("q", q, c.q, {N, T, H, d});
    f.whole("keys", keys, c.keys, {N, H, d, S});
    f.whole("values", values, c.values, {N, H, S, c.d_value});
    f.mask(key_padding_mask, c.key_padding_mask, {N, S});
    out = f.new_rows(c.out, q, c.d_value);
  };
  with_call<SourceCall>(op, "q", q, describe, [](const auto& c, auto number) {
    for_each_head(c, chosen_kernels<decltype(number)>().source);
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(fwp, CPU, m) { m.impl("read_source", &read_source); }

}  // namespace fwp
