// Chooses the kernel of a short sentence; each number of rows is compiled on its own.
#pragma once

#include "short_backward.cuh"
#include "short_forward.cuh"

namespace fwp::gpu {

template <int ROWS> struct ShortLaunch {
  static int bytes_of(const Call& c);
  static const char* run(const Call& c, void* stream);

 private:
  // f(CORRECTS, DECAYS, DPFP), as types.
  template <class F> static auto by_kind(const Call& c, F f) {
    const auto by = [](bool holds, auto then) { return holds ? then(std::true_type()) : then(std::false_type()); };
    return by(corrects(c.rule), [&](auto corrects) {
      return by(decays(c.rule),
                [&](auto decays) { return by(is_dpfp(c), [&](auto dpfp) { return f(corrects, decays, dpfp); }); });
    });
  }
};

template <int ROWS> int ShortLaunch<ROWS>::bytes_of(const Call& c) {
  return by_kind(c, [&](auto corrects, auto decays, auto dpfp) {
    if constexpr (ROWS <= most_backward_tokens)
      if (c.backward) return ShortBackward<ROWS, corrects.value, decays.value, dpfp.value>::lay(nullptr, nullptr, c);
    return ShortForward<ROWS, corrects.value, decays.value, dpfp.value>::lay(nullptr, nullptr, c);
  });
}
template <int ROWS> const char* ShortLaunch<ROWS>::run(const Call& c, void* stream) {
  void (*const kernel)(Call) = by_kind(c, [&](auto corrects, auto decays, auto dpfp) -> void (*)(Call) {
    if constexpr (ROWS <= most_backward_tokens)
      if (c.backward) return short_backward_kernel<ROWS, corrects.value, decays.value, dpfp.value>;
    return short_forward_kernel<ROWS, corrects.value, decays.value, dpfp.value>;
  });
  return launch(kernel, c.batch * c.heads, 2 * ROWS, bytes_of(c), static_cast<Stream>(stream), c);
}
extern template struct ShortLaunch<32>;
extern template struct ShortLaunch<64>;
extern template struct ShortLaunch<128>;

}  // namespace fwp::gpu
