// From gradients of features to those of the inputs, for 16 own tokens. dphi is made in tiles of 16 tokens x 16
// features, and added at once to the gradient of the inputs: for DPFP, dr_i = sum over offsets s = -nu .. nu of
// dphi(r_i r_{i+s}) r_{i+s}. With f = phi / (sum phi + eps): dphi = (df - df.f) / (sum phi +
// eps), where df.f of a token follows from the small products of backward.cuh.
#pragma once

#include "stateful.cuh"

namespace fwp::gpu {

template <class P, int LT, Kind K, int TEAMS = 1> struct Gradients : Stateful<P, LT, K, value_block, TEAMS> {
  using Base = Stateful<P, LT, K, value_block, TEAMS>;
  using Base::Base;
  using Base::c, Base::here, Base::s, Base::g, Base::t, Base::row, Base::stride, Base::tiles, Base::lane,
      Base::value_tiles, Base::states, Base::several;
  using typename Base::Element, typename Base::Pair, typename Base::Strip, typename Base::Values;
  using Tile = float[2][4];  // 16 tokens x 16 features
  using Operands = Pair[tiles][4];

  // strip += (own rows of `own`) . (rows of `other`), for the tiles first .. last - 1 of `other`
  FWP_DEVICE void add_pairs(Strip& strip, const float* own, const float* other, int first, int last) const {
    const float *left = own + (row + g) * stride + 2 * t, *right = other + g * stride + 2 * t;
    FWP_ROLLED for (int k = 0; k < value_blocks(c) * value_block; k += 16) {
      Float2 a[4];
      FWP_UNROLL for (int i = 0; i < 4; ++i) a[i] = pair_of(left + 8 * (i & 1) * stride + k + 8 * (i >> 1));
      FWP_UNROLL for (int m = 0; m < tiles; ++m)
        if (m >= first && m < last)
          FWP_UNROLL for (int n = 0; n < 2; ++n) {
            const float* at = right + (16 * m + 8 * n) * stride + k;
            P::mma(strip[2 * m + n], a, pair_of(at), pair_of(at + 8));
          }
    }
  }
  static FWP_DEVICE Float2 pair_of(const float* at) { return Single::load_pair(Type::float32, at, 0); }

  // power: for each row of the strip, the power of two below its largest absolute value.
  FWP_DEVICE void powers(float (&power)[2], const Strip& strip) const {
    power[0] = power[1] = 1;
    if (!P::scaled) return;
    float largest[2] = {};
    Base::for_strip([&](int n, int i, int) { largest[i >> 1] = larger(largest[i >> 1], absolute(strip[n][i])); });
    FWP_UNROLL for (int r = 0; r < 2; ++r) {
      FWP_UNROLL for (int d = 1; d < 4; d *= 2) largest[r] = larger(largest[r], shuffle_xor(largest[r], d));
      power[r] = power_below(largest[r]);
    }
  }
  // The strip as operands, each row divided by its `power` so that it is near 1 for fp16.
  FWP_DEVICE void operands(Operands& a, const float (&power)[2], const Strip& strip) const {
    const float by[2] = {one_over_power(power[0]), one_over_power(power[1])};
    FWP_UNROLL for (int m = 0; m < tiles; ++m)
      FWP_UNROLL for (int i = 0; i < 4; ++i) {
        const float* x = strip[2 * m + (i >> 1)] + 2 * (i & 1);
        a[m][i] = P::pair(x[0] * by[i & 1], x[1] * by[i & 1]);
      }
  }

  // tile += operands times features of the side from base row `first` on; with offsets these are r_i r_{i+shift}
  template <bool ROLLED>
  FWP_DEVICE void add_features(Tile& tile, const Operands& a, const Element* side, int first, int shift, int first_tile,
                               int last_tile) const {
    const Element* corner = side + Base::b_across + first * Base::ld;
    FWP_UNROLL for (int m = 0; m < tiles; ++m)
      if (m >= first_tile && m < last_tile) {
        Pair y[1][4];
        Base::template load_features<B_across, ROLLED>(y, shift * Base::ld, [&](int) { return corner + 16 * m; });
        P::mma(tile[0], a[m], y[0][0], y[0][1]);
        P::mma(tile[1], a[m], y[0][2], y[0][3]);
      }
  }

  // The number of feature r_i r_{i+shift} (for any i), or without offsets that of base row i.
  FWP_DEVICE int product_number(int slab, int i, int shift) const {
    if (!c.nu) return Base::feature_number(slab, 0, i);
    const int n = i + (shift < 0 ? 0 : shift);
    return Base::feature_number(0, shift < 0 ? -shift : shift, n < Base::modulus ? n : n - Base::modulus);
  }
  // tile += by (own rows . the features' rows of W)
  FWP_DEVICE void add_state_rows(Tile& tile, const float* own, const float (&by)[2], const float* W, int slab, int first,
                                 int shift) const {
    const float* W_here = W + int64_t(here.head) * c.d_dot * c.d_value;
    const int width = c.d_value;
    Tile x;
    Base::clear(x);
    const float* rows[2];
    bool there[2];
    FWP_UNROLL for (int n = 0; n < 2; ++n) {
      const int f = product_number(slab, first + 8 * n + g, shift);
      there[n] = f >= 0;
      rows[n] = W_here + int64_t(f) * width + 2 * t;
    }
    Base::for_state(width, [&](auto full) {
      constexpr int steps = full.value ? value_block / 16 : 1;  // of 16 columns, loaded without waiting for each other
      FWP_ROLLED for (int k = 0; k < width; k += 16 * steps) {
        Float2 b[steps][2][2];
        FWP_UNROLL for (int q = 0; q < steps; ++q)
          FWP_UNROLL for (int n = 0; n < 2; ++n)
            FWP_UNROLL for (int e = 0; e < 2; ++e) {
              const int at = k + 16 * q + 8 * e, column = at + 2 * t;
              if constexpr (full.value) b[q][n][e] = Single::load_pair(Type::float32, rows[n], at);
              else
                b[q][n][e] = {there[n] && column < width ? rows[n][at] : 0.f,
                              there[n] && column + 1 < width ? rows[n][at + 1] : 0.f};
            }
        FWP_UNROLL for (int q = 0; q < steps; ++q) {
          Float2 a[4];
          FWP_UNROLL for (int i = 0; i < 4; ++i) {
            const float* at = own + (row + g + 8 * (i & 1)) * stride + k + 16 * q + 2 * t + 8 * (i >> 1);
            a[i] = {at[0], at[1]};
          }
          FWP_UNROLL for (int n = 0; n < 2; ++n) P::mma(x[n], a, b[q][n][0], b[q][n][1]);
        }
      }
    });
    FWP_UNROLL for (int n = 0; n < 2; ++n)
      FWP_UNROLL for (int i = 0; i < 4; ++i) tile[n][i] += by[i >> 1] * x[n][i];
  }
  // tile += by (the features' elements of z)
  FWP_DEVICE void add_state_z(Tile& tile, const float (&by)[2], const float* z, int slab, int first, int shift) const {
    const float* z_here = z + int64_t(here.head) * c.d_dot;
    FWP_UNROLL for (int n = 0; n < 2; ++n)
      FWP_UNROLL for (int i = 0; i < 4; ++i) {
        const int f = product_number(slab, first + 8 * n + 2 * t + (i & 1), shift);
        if (f >= 0) tile[n][i] += by[i >> 1] * z_here[f];
      }
  }

  // Writes the gradient of own inputs. That of 16 scaled features from base row `first` on (offsets: r_i r_{i+shift})
  // is `back` times what gradient(rolled, tile, first, shift) adds, plus what rest(tile, slab, first, shift) adds.
  template <class F, class R> FWP_DEVICE void store_inputs(bool is_key, const float (&back)[2], F gradient, R rest) {
    const Rows<const void>& from = is_key ? c.k : c.q;
    const Rows<void>& to = is_key ? c.grad_k : c.grad_q;
    const Element* side = is_key ? s.keys : s.queries;
    const float *unit = (is_key ? s.unit_k : s.unit_q) + row + g, *scale = (is_key ? s.scale_k : s.scale_q) + row + g;
    const float* shift_by = (is_key ? s.shift_k : s.shift_q) + row + g;
    float subtract[2], factor[2];
    FWP_UNROLL for (int r = 0; r < 2; ++r) {
      subtract[r] = c.normalize_features ? shift_by[8 * r] : 0.f;
      factor[r] = Base::is_favor() ? scale[8 * r] : scale[8 * r] * one_over_power(unit[8 * r]);
    }
    // The gradient of 16 features, less the df.f that their normalisation subtracts.
    const auto of_features = [&](Tile& x, auto rolled, int slab, int first, int shift) {
      Base::clear(x);
      gradient(rolled, x, first, shift);
      Tile more;
      Base::clear(more);
      if (states) rest(more, slab, first, shift);
      FWP_UNROLL for (int n = 0; n < 2; ++n)
        FWP_UNROLL for (int i = 0; i < 4; ++i) x[n][i] = back[i >> 1] * x[n][i] + (more[n][i] - subtract[i >> 1]);
    };
    if (Base::is_favor()) {
      store_favor(is_key, from, to, side, factor, of_features);
    } else if (c.nu) {
      store_rolled(is_key, from, to, side, factor, of_features);
    } else {
      Base::for_slabs([&](int slab) {
        const int start = slab * Base::base_rows;
        FWP_ROLLED for (int d = 0; d < Base::base_rows && start + d < c.d_key; d += 16) {
          Tile x, input;
          of_features(x, std::false_type{}, slab, d, 0);
          if (!Base::with_elementwise([](auto map) { return Phi<map.value>::linear; })) {
            load_inputs(input, is_key, from, start + d);
            Base::with_elementwise([&](auto map) {
              FWP_UNROLL for (int n = 0; n < 2; ++n)
                FWP_UNROLL for (int i = 0; i < 4; ++i) x[n][i] = Phi<map.value>::back(x[n][i], input[n][i]);
            });
          }
          store_tile(is_key, to, start + d, x, factor);
        }
      });
    }
  }
  // Maps with offsets: r_i and r_{i-j} each get the gradient of r_i r_{i-j} times the other one. It is made in the tile that
  // has r_i. Tiles of a sign are taken from the last to the first, so what falls to r_{i-j} may wait for the next one. A sign's
  // last tile follows the other's first; what it would get from there, and every tile's share where tiles do not join or
  // offsets are wide, is made from the gradient of r_{i+s} r_i, a second time.
  template <class F>
  FWP_DEVICE void store_rolled(bool is_key, const Rows<const void>& from, const Rows<void>& to, const Element* side,
                               const float (&factor)[2], F of_features) {
    const Element* own = side + Base::a_down + row;
    const bool once = c.nu < 8 && c.d_key % 16 == 0;
    float waiting[2][4] = {};  // for the next tile, and for the one after it, which has the other sign
    FWP_ROLLED for (int d = (c.d_key - 1) / 16 * 16; d >= 0; d -= 16) {
      const bool joined = once && d + 16 < c.d_key;
      Tile total, input;
      load_inputs(input, is_key, from, d);
      FWP_ROLLED for (int sign = 0; sign < 2; ++sign) {
        const int first = sign ? c.d_key + d : d;
        Tile of_r;
        Base::clear(of_r);
        FWP_UNROLL for (int i = 0; i < 4; ++i) {
          of_r[1][i] = waiting[0][i];
          waiting[0][i] = waiting[1][i], waiting[1][i] = 0;
        }
        const auto add = [&](int n, int i, float y) { of_r[n][i] += y; };
        FWP_ROLLED for (int shift = -c.nu; shift <= (joined ? -1 : c.nu); ++shift) {
          if (shift == 0) continue;
          Tile x;
          of_features(x, std::true_type{}, 0, first, shift);
          const auto times = [&](int base_row, auto use) {
            Pair r[4];
            P::template load<A_down, Base::ld>(r, own + base_row * Base::ld);
            FWP_UNROLL for (int n = 0; n < 2; ++n)
              FWP_UNROLL for (int i = 0; i < 4; ++i) {
                const Float2 y = P::values(r[2 * n + (i >> 1)]);
                use(n, i, x[n][i] * (i & 1 ? y.y : y.x));
              }
          };
          times(first + shift, add);
          if (once && shift < 0) {
            times(first, [&](int n, int i, float y) { x[n][i] = y; });
            move(x, -shift, [&](int n, int i, float y) { if (joined) add(n, i, y); }, waiting[1]);
          }
        }
        FWP_UNROLL for (int n = 0; n < 2; ++n)
          FWP_UNROLL for (int i = 0; i < 4; ++i) {
            if (!sign) total[n][i] = input[n][i] > 0 ? of_r[n][i] : 0.f;
            else if (input[n][i] < 0) total[n][i] = -of_r[n][i];
          }
      }
      store_tile(is_key, to, d, total, factor);
    }
  }
  // Moves x by j < 8 columns to the left: calls add(n, i, y) for what stays in the tile, and adds what passes its first column
  // to the last 8 columns of the tile before.
  template <class F> FWP_DEVICE void move(const Tile& x, int j, F add, float (&before)[4]) const {
    FWP_UNROLL for (int e = 0; e < 2; ++e) {
      const int column = 2 * t + e + j, from = (lane & ~3) | (column >> 1 & 3);
      const bool next = column >= 8, other = j & 1;
      FWP_UNROLL for (int r = 0; r < 4; r += 2) {
        const float left = shuffle(other ? x[0][r + 1 - e] : x[0][r + e], from),
                    right = shuffle(other ? x[1][r + 1 - e] : x[1][r + e], from);
        add(0, r + e, next ? right : left);
        if (next) before[r + e] += left;
        else add(1, r + e, right);
      }
    }
  }
  // Loads inputs of own tokens, in the columns from `column` on; 0 where there are none.
  FWP_DEVICE void load_inputs(Tile& x, bool is_key, const Rows<const void>& from, int column) const {
    Pair given[2][2];
    FWP_UNROLL for (int r = 0; r < 2; ++r) {
      const int token = row + g + 8 * r,
                end = (is_key ? Base::key_there(token) : Base::query_there(token)) ? c.d_key : 0;
      const Element* at = static_cast<const Element*>(from.data) + Base::offset(from, unsigned(token));
      FWP_UNROLL for (int n = 0; n < 2; ++n) {
        const int d = column + 8 * n + 2 * t;
        if (from.aligned) given[n][r] = d < end ? Base::load(at + d) : Pair{};
        else given[n][r] = P::joined(d < end ? at[d] : Element(0), d + 1 < end ? at[d + 1] : Element(0));
      }
    }
    P::for_type(c.type, [&](auto type) {
      FWP_UNROLL for (int n = 0; n < 2; ++n)
        FWP_UNROLL for (int r = 0; r < 2; ++r) {
          const Float2 y = P::template numbers<type.value>(given[n][r]);
          x[n][2 * r] = y.x;
          x[n][2 * r + 1] = y.y;
        }
    });
  }
  FWP_DEVICE void store_tile(bool is_key, const Rows<void>& to, int column, const Tile& x,
                             const float (&factor)[2]) const {
    const int tokens = is_key ? here.keys : here.queries;
    P::for_type(c.type, [&](auto type) {
      FWP_UNROLL for (int r = 0; r < 2; ++r) {
        const int token = row + g + 8 * r;
        if (token >= tokens) continue;
        const float by = is_key && !Base::key_there(token) ? 0.f : factor[r];
        Element* at = static_cast<Element*>(to.data) + Base::offset(to, unsigned(token));
        FWP_UNROLL for (int n = 0; n < 2; ++n) {
          const int d = column + 8 * n + 2 * t;
          const Float2 y = {by == 0 ? 0.f : by * x[n][2 * r], by == 0 ? 0.f : by * x[n][2 * r + 1]};
          const Pair pair = P::template packed<type.value>(y);
          if (to.aligned && d < c.d_key) Base::store(at + d, pair);
          if (!to.aligned && d < c.d_key) at[d] = P::part(pair, 0);
          if (!to.aligned && d + 1 < c.d_key) at[d + 1] = P::part(pair, 1);
        }
      }
    });
  }

  // dx += the differences of 16 pairs of features from `first` on, times their rows of R, columns from `column` on
  FWP_DEVICE void add_projected(Values& dx, const Tile& difference, int first, int column) const {
    const Float2 a[4] = {{difference[0][0], difference[0][1]}, {difference[0][2], difference[0][3]},
                         {difference[1][0], difference[1][1]}, {difference[1][2], difference[1][3]}};
    const float* rows[4];  // of R; past the last row, where differences are 0, the last again
    FWP_UNROLL for (int e = 0; e < 4; ++e) {
      const int number = first + 2 * t + (e & 1) + 8 * (e >> 1);
      rows[e] = c.projection + (number < c.m ? number : c.m - 1) * c.d_key + column + g;
    }
    const bool full = column + value_block <= c.d_key;
    FWP_UNROLL for (int n = 0; n < value_tiles; ++n) {
      float r[4];
      FWP_UNROLL for (int e = 0; e < 4; ++e) r[e] = full || column + 8 * n + g < c.d_key ? rows[e][8 * n] : 0.f;
      P::mma(dx[n], a, Float2{r[0], r[1]}, Float2{r[2], r[3]});
    }
  }
  template <class F>
  FWP_DEVICE void store_favor(bool is_key, const Rows<const void>& from, const Rows<void>& to, const Element* side,
                              const float (&factor)[2], F of_features) {
    const int half = Base::base_rows / 2;
    const float* top = (is_key ? s.unit_k : s.unit_q) + row + g;
    const bool clipped[2] = {top[0] == largest_exponent, top[8] == largest_exponent};
    FWP_ROLLED for (int column = 0; column < c.d_key; column += 64) {
      Values dx;
      float sum[2] = {};
      Base::clear(dx);
      Base::for_slabs([&](int slab) {
        FWP_ROLLED for (int first = 0; first < half; first += 16) {
          Tile difference;
          Base::clear(difference);
          FWP_ROLLED for (int sign = 0; sign < 2; ++sign) {
            Tile x;
            of_features(x, std::false_type{}, slab, first + (sign ? half : 0), 0);
            Pair phi[4];
            P::template load<A_down, Base::ld>(phi, side + Base::a_down + row + (first + (sign ? half : 0)) * Base::ld);
            FWP_UNROLL for (int n = 0; n < 2; ++n)
              FWP_UNROLL for (int i = 0; i < 4; ++i) {
                const Float2 pair = P::values(phi[2 * n + (i >> 1)]);
                const float f = i & 1 ? pair.y : pair.x;
                const float y = clipped[i >> 1] && f == 1 ? 0.f : x[n][i] * factor[i >> 1] * f;
                sum[i >> 1] += y;
                difference[n][i] += sign ? -y : y;
              }
          }
          add_projected(dx, difference, slab * half + first, column);
        }
      });
      const float scale = c.input_scale, by[2] = {scale, scale};
      const float norm[2] = {scale * Base::quad_sum(sum[0]), scale * Base::quad_sum(sum[1])};
      FWP_UNROLL for (int n = 0; n < value_tiles; n += 2) {
        Tile x;
        load_inputs(x, is_key, from, column + 8 * n);
        FWP_UNROLL for (int e = 0; e < 2; ++e)
          FWP_UNROLL for (int i = 0; i < 4; ++i) x[e][i] = dx[n + e][i] - norm[i >> 1] * x[e][i];
        store_tile(is_key, to, column + 8 * n, x, by);
      }
    }
  }
  // tile += own rows . own rows
  FWP_DEVICE void add_own_pairs(Tile& tile, const float* left, const float* right) const {
    FWP_ROLLED for (int k = 0; k < value_blocks(c) * value_block; k += 16) {
      Float2 a[4];
      FWP_UNROLL for (int i = 0; i < 4; ++i)
        a[i] = pair_of(left + (row + g + 8 * (i & 1)) * stride + k + 2 * t + 8 * (i >> 1));
      FWP_UNROLL for (int n = 0; n < 2; ++n) {
        const float* at = right + (row + 8 * n + g) * stride + k + 2 * t;
        P::mma(tile[n], a, pair_of(at), pair_of(at + 8));
      }
    }
  }
};

}  // namespace fwp::gpu
