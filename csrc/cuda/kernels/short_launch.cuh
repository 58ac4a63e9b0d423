// Chooses the kernel of a short sentence; each number of rows is compiled on its own.
#pragma once

#include "short_backward.cuh"
#include "short_forward.cuh"

namespace fwp::gpu {

template <int ROWS> struct ShortLaunch {
  static int bytes_of(const Call& c);
  static const char* run(const Call& c, void* stream);

 private:
  // f(CORRECTS, DECAYS), as types.
  template <class F> static auto by_rule(const Call& c, F f) {
    using std::bool_constant;
    if (corrects(c.rule))
      return decays(c.rule) ? f(bool_constant<true>(), bool_constant<true>())
                            : f(bool_constant<true>(), bool_constant<false>());
    return decays(c.rule) ? f(bool_constant<false>(), bool_constant<true>())
                          : f(bool_constant<false>(), bool_constant<false>());
  }
};

template <int ROWS> int ShortLaunch<ROWS>::bytes_of(const Call& c) {
  return by_rule(c, [&](auto corrects, auto decays) {
    if constexpr (ROWS <= most_backward_tokens)
      if (c.grad_out.data) return ShortBackward<ROWS, corrects.value, decays.value>::lay(nullptr, nullptr, c);
    return ShortForward<ROWS, corrects.value, decays.value>::lay(nullptr, nullptr, c);
  });
}
template <int ROWS> const char* ShortLaunch<ROWS>::run(const Call& c, void* stream) {
  void (*const kernel)(Call) = by_rule(c, [&](auto corrects, auto decays) -> void (*)(Call) {
    if constexpr (ROWS <= most_backward_tokens)
      if (c.grad_out.data) return short_backward_kernel<ROWS, corrects.value, decays.value>;
    return short_forward_kernel<ROWS, corrects.value, decays.value>;
  });
  return launch(kernel, c.batch * c.heads, 2 * ROWS, bytes_of(c), static_cast<Stream>(stream), c);
}
extern template struct ShortLaunch<32>;
extern template struct ShortLaunch<64>;
extern template struct ShortLaunch<128>;

}  // namespace fwp::gpu
