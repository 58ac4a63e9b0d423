// The head and the chunk that a block of threads processes: addresses, the vectors that keys write and their strengths,
// and decays.
#pragma once

#include "decay.cuh"
#include "dpfp.cuh"
#include "features.cuh"
#include "number.cuh"

namespace fwp::gpu {

FWP_DEVICE float load(Type type, const void* from, int64_t i) {
  if (type == Type::float32) return static_cast<const float*>(from)[i];
  const uint16_t x = static_cast<const uint16_t*>(from)[i];
  return type == Type::float16 ? from_half(x) : from_bfloat16(x);
}
FWP_DEVICE void store(Type type, void* to, int64_t i, float x) {
  if (type == Type::float32) static_cast<float*>(to)[i] = x;
  else static_cast<uint16_t*>(to)[i] = type == Type::float16 ? to_half(x) : to_bfloat16(x);
}
FWP_DEVICE Float2 two_of(Type type, uint32_t x) {  // halves or bfloat16s
  return type == Type::float16 ? Float2{first_half(x), second_half(x)}
                               : Float2{float_of(x << 16), float_of(x & 0xffff0000u)};
}
FWP_DEVICE uint32_t pack_two(Type type, float a, float b) {
  return type == Type::float16 ? pack_halves(a, b) : pack_bfloat16s(a, b);
}

struct Head {
  const Call& c;
  int head, b, h;  // in the group; in the batch
  bool reversed;  // from the last token to the first

  FWP_DEVICE Head(const Call& call, int head)
      : c(call), head(head), b((c.first_head + head) / c.heads), h((c.first_head + head) % c.heads),
        reversed(c.both_ways && h >= c.heads / 2) {}

  // The offset of the row of a token, of `length` tokens in the head's order.
  template <class V> FWP_DEVICE int64_t offset(const Rows<V>& rows, int token, int length) const {
    return b * rows.batch + (reversed ? length - 1 - token : token) * rows.time + h * rows.head;
  }
  FWP_DEVICE bool is_pad(int key) const {
    return c.key_padding_mask.data && c.key_padding_mask.data[offset(c.key_padding_mask, key, c.sources)];
  }
};

// Assigns consecutive parts of shared memory.
struct Parts {
  char* base;
  int used = 0;  // bytes

  template <class T> FWP_BOTH void operator()(T*& pointer, int bytes) {
    pointer = reinterpret_cast<T*>(base + used);
    used += bytes;
  }
};

// Shared memory of a block. Vectors have a number for each row of a tile, which is one for each key of the chunk.
struct Shared {
  Tile x, y, p;  // two tiles each
  float *beta, *keep, *rate, *sums;  // per key; beta is 0 and keep is 1 at padding
  float* decay;  // [64][65], see decay.cuh

  FWP_BOTH int lay(char* base, const Call& c) {
    Parts take{base};
    const int rows = block_rows(c), tiles_bytes = 2 * int(sizeof(uint16_t)) * rows * tile_ld;
    take(x.at, tiles_bytes), take(y.at, tiles_bytes), take(p.at, tiles_bytes);
    constexpr int powers_bytes = 2 * int(sizeof(float)) * powers_ld * powers_ld;
    take(x.powers, powers_bytes), take(y.powers, powers_bytes), take(p.powers, powers_bytes);
    take(beta, 4 * rows), take(keep, 4 * rows), take(rate, 4 * rows), take(sums, 4 * rows);
    take(decay, decays(c.rule) ? 4 * decay_floats : 0);
    return take.used;
  }
};

// Columns of W, z and U: either those of z, or up to 64 columns of values.
struct Slice {
  int first, columns, values;  // columns: a multiple of 16; values: the first value, if not z
  bool is_z;
};

struct Range {  // of tiles of 64 features, or of chunks
  int first, end;
};

struct Tokens : Head, Products {
  Shared s;

  FWP_DEVICE Tokens(const Call& call, int head) : Head(call, head), Products(block_rows(call)) {
    s.lay(shared_memory(s.lay(nullptr, c)), c);
  }

  FWP_DEVICE Slice slice(int i, int width = chunk) const {
    if (i < first_slice(c)) return {0, 16, 0, true};
    const int values = width * (i - first_slice(c)), rest = round_up(c.d_value, 16) - values;
    return {first_value(c) + values, rest < width ? rest : width, values, false};
  }
  static FWP_DEVICE int part(int total, int i) { return total - chunk * i < chunk ? total - chunk * i : chunk; }
  FWP_DEVICE int keys(int i) const { return part(key_rows(c), i); }  // of a chunk, in whole 16s
  FWP_DEVICE int queries(int i) const { return part(query_rows(c), i); }
  FWP_DEVICE int feature_tiles() const { return feature_tiles_of(c); }
  FWP_DEVICE int width(int f) const { return part(features_of(c), f); }
  FWP_DEVICE bool owns(int rows) const { return row < rows; }  // whether this warp has some of so many rows

  // The part of a matrix (rows, columns) of the group's heads that belongs to this one.
  FWP_DEVICE Matrix own(const Halves& x, int64_t rows, int columns) const {
    return {{x.numbers + head * rows * columns, x.powers + head * (rows / 16) * (columns / 16)}, columns};
  }
  FWP_DEVICE float* own(float* x, int64_t size) const { return x + head * size; }
  FWP_DEVICE Matrix x_q(int i) const { return own(c.x_q, query_rows(c), inputs_of(c)).from(chunk * i, 0); }
  FWP_DEVICE Matrix x_k(int i) const { return own(c.x_k, key_rows(c), inputs_of(c)).from(chunk * i, 0); }
  FWP_DEVICE Matrix inverse(int i) const { return own(c.inverse, chunks_of(c) * chunk, chunk).from(chunk * i, 0); }
  FWP_DEVICE Matrix state_of(const Halves& x, int i) const {
    return own(x, int64_t(chunks_of(c)) * features_of(c), columns_of(c)).from(i * features_of(c), 0);
  }
  FWP_DEVICE Matrix state(int i) const { return state_of(c.states, i); }
  FWP_DEVICE Matrix of_keys(const Halves& x, int i) const {
    return own(x, key_rows(c), columns_of(c)).from(chunk * i, 0);
  }
  FWP_DEVICE Matrix written(int i) const { return of_keys(c.written, i); }
  FWP_DEVICE bool has_state(int i) const { return i > 0 || c.initial_W; }

  // Loads the gates of a chunk of keys, and computes the decays of all pairs. Shared memory must be free, after a
  // barrier; ends with a barrier.
  FWP_DEVICE void load_chunk(int i) const {
    if (thread < block_rows(c)) {
      const int key = chunk * i + thread;
      const bool there = key < c.sources && !is_pad(key);
      s.beta[thread] = !there ? 0.f : c.beta.data ? c.beta.data[offset(c.beta, key, c.sources)] : 1.f;
      const bool has_alpha = there && takes_alpha(c.rule);
      const float alpha = has_alpha ? c.alpha.data[offset(c.alpha, key, c.sources)] : 1.f;
      s.keep[thread] = keep_of(c.rule, s.beta[thread], alpha);
      if (corrects(c.rule)) s.rate[thread] = key < key_rows(c) ? own(c.rates, key_rows(c))[key] : 0.f;
    }
    sync_block();
    if (!decays(c.rule)) return;
    find_decay(s.decay, s.keep, thread);
    sync_block();
  }
  // The factors by which what a key wrote, and the state before the chunk, have decayed at a token; at the last one,
  // for the end of the chunk.
  FWP_DEVICE float decay(int token, int key) const { return decays(c.rule) ? s.decay[token * decay_ld + key] : 1.f; }
  FWP_DEVICE float left(int token) const { return decay(token, chunk); }
  static constexpr int last_token = chunk - 1;
  // The chunks of queries whose products with a chunk of keys are needed. If not causal, all queries read with the last
  // chunk of keys.
  FWP_DEVICE Range readers(int i) const {
    return {c.causal ? i : 0, c.targets == 0 ? 0 : c.causal ? i + 1 : i == chunks_of(c) - 1 ? query_chunks_of(c) : 0};
  }
  // The token whose decays apply to a query: itself, or the end of the chunk if all queries read after all keys.
  FWP_DEVICE int reader(int query) const { return c.causal ? query : last_token; }

  // Values of the caller are copied through a tile, in the type and order that they have in memory; each warp copies
  // its own rows. The loops are not unrolled, because a block that starts has to wait until its instructions are
  // loaded.
  static constexpr int passing_bytes = 4 * (chunk + 4);
  static_assert(passing_bytes <= 2 * int(sizeof(uint16_t)) * tile_ld);
  static FWP_DEVICE char* passing_row(const Tile& tile, int r) {
    return reinterpret_cast<char*>(tile.at) + r * passing_bytes;
  }
  // Calls f(row, piece) for each piece of the warp's rows; neighbouring lanes get neighbouring pieces.
  template <class F> FWP_DEVICE void each_piece(int pieces, F f) const {
    int across = 32;
    while (across / 2 >= pieces) across /= 2;
    FWP_ROLLED (int p = lane % across; p < pieces; p += across)
      FWP_ROLLED (int r = lane / across; r < 16; r += 32 / across) f(row + r, p);
  }
  // Starts to copy the warp's rows of a slice, with 0 in rows for which there(row) is false, and beyond the last token
  // and value. `fetched` waits for the copies.
  template <class There> FWP_DEVICE void fetch(Tile to, const Rows<const void>& from, int first, int length,
                                               const Slice& x, There there) const {
    constexpr int size = sizeof(uint16_t);
    const int some = from.aligned ? 16 / size : 1;
    each_piece(x.columns / some, [&](int r, int p) {
      const int column = x.values + p * some;
      const bool given = first + r < length && column < c.d_value && there(r);
      const int64_t at = given ? offset(from, first + r, length) + column : 0;
      char* const to_piece = passing_row(to, r) + p * some * size;
      if (from.aligned && given) return start_copy(to_piece, static_cast<const char*>(from.data) + at * size);
      FWP_ROLLED (int n = 0; n < some; ++n) store(c.type, to_piece, n, given ? load(c.type, from.data, at) : 0.f);
    });
  }
  FWP_DEVICE void fetch_values(Tile to, const Slice& x, int i) const {
    if (!x.is_z)
      fetch(to, c.v, chunk * i, c.sources, x, [&](int r) { return s.beta[r] != 0 || !is_pad(chunk * i + r); });
  }
  static FWP_DEVICE void fetched() {
    copies_arrived();
    sync_warp();
  }
  FWP_DEVICE Float2 passing(Tile tile, int r, int column) const {
    return two_of(c.type, *reinterpret_cast<const uint32_t*>(passing_row(tile, r) + 2 * column));
  }
  // Copies the warp's rows of a slice to the caller, through a tile, which is free after a barrier.
  FWP_DEVICE void give(const Rows<void>& to, Tile through, Strip<8>& y, int first, int length, const Slice& x) const {
    each(y, x.columns,
         [&](int r, int j, float a, float b) { *reinterpret_cast<Float2*>(passing_row(through, r) + 4 * j) = {a, b}; });
    sync_warp();
    each_piece(x.columns / 2, [&](int r, int p) {
      const int column = x.values + 2 * p;
      if (first + r >= length || column >= c.d_value) return;
      const int64_t at = offset(to, first + r, length) + column;
      const Float2 z = *reinterpret_cast<const Float2*>(passing_row(through, r) + 8 * p);
      if (to.aligned) {
        word(static_cast<uint16_t*>(to.data) + at) = pack_two(c.type, z.x, z.y);
        return;
      }
      store(c.type, to.data, at, z.x);
      if (column + 1 < c.d_value) store(c.type, to.data, at + 1, z.y);
    });
  }
  // What a key writes, before `strength` multiplies it and before it is corrected: its value, which has been fetched;
  // for z, 1 in two columns, so that their gradient can be two numbers (forward.cuh, put_norm_gradient).
  FWP_DEVICE Float2 value(const Slice& x, Tile values, int key, int column) const {
    const float of_z = column == 0 ? 1.f : 0.f;
    return x.is_z ? Float2{of_z, of_z} : passing(values, key, column);
  }
  // The factor of `value`.
  FWP_DEVICE float strength(const Slice& x, int key) const {
    return x.is_z && !weighs_writes(c.rule) ? 1.f : s.beta[key];
  }
  FWP_DEVICE bool corrected(const Slice& x) const { return corrects(c.rule) && !x.is_z; }

  // Starts to compute a tile of the features of `rows` tokens from x; `arrived` waits for it. Each thread computes half
  // of a row.
  FWP_DEVICE void stage_features(const Tile& to, const Matrix& x, int rows, int f) const {
    if (!is_dpfp(c)) return stage(to, x.from(0, chunk * f), rows, width(f));
    if (thread < rows / 16 * powers_ld)
      start_copy_of_word(to.powers + thread, x.at.powers + x.block(thread / powers_ld * 16, 0));
    const int half = thread >= threads / 2 ? 1 : 0, r = thread - half * (threads / 2), part = 2 * f + half;
    if (r < rows && part < parts_of(c)) make_part(c, to.at + r * tile_ld + 32 * half, x.number(r, before_x(c)), part);
  }

  // sum += phi(x) S, summed over all features, where x has `rows` tokens and S a row for each feature. Leaves shared
  // memory free.
  template <int N> FWP_DEVICE void read_state(Strip<N>& sum, const Matrix& x, int rows, const Matrix& state,
                                              int columns) const {
    Units<N> units;
    begin<N>(units);
    each_staged(
        feature_tiles(),
        [&](int f) {
          stage_features(turn(s.x, f), x, rows, f);
          stage(turn(s.y, f), state.from(chunk * f, 0), width(f), columns);
        },
        [&](int f) {
          if (owns(rows)) multiply<false, false>(sum, units, turn(s.x, f), turn(s.y, f), width(f), columns);
        });
    end<N>(sum, units, columns);
  }
  // sum += A B^T over `inner` columns. The rows of A and B are tokens; start_a(to, n) and start_b(to, n) start to copy
  // 64 columns. Leaves shared memory free.
  template <class A, class B>
  FWP_DEVICE void add_gram(Strip<8>& sum, int rows, int columns, int inner, A start_a, B start_b) const {
    Units<8> units;
    begin<8>(units);
    each_staged((inner + chunk - 1) / chunk, [&](int n) { start_a(turn(s.x, n), n), start_b(turn(s.y, n), n); },
                [&](int n) {
                  if (owns(rows))
                    multiply<false, true>(sum, units, turn(s.x, n), turn(s.y, n), part(inner, n), columns);
                });
    end<8>(sum, units, columns);
  }
  FWP_DEVICE void add_gram(Strip<8>& sum, const Matrix& a, int rows, const Matrix& b, int columns, int inner) const {
    add_gram(
        sum, rows, columns, inner,
        [&](const Tile& to, int n) { stage(to, a.from(0, chunk * n), rows, part(inner, n)); },
        [&](const Tile& to, int n) { stage(to, b.from(0, chunk * n), columns, part(inner, n)); });
  }
  // sum += phi(q) phi(k)^T
  FWP_DEVICE void add_gram_of_features(Strip<8>& sum, const Matrix& q, int rows, const Matrix& k, int columns) const {
    add_gram(
        sum, rows, columns, features_of(c), [&](const Tile& to, int f) { stage_features(to, q, rows, f); },
        [&](const Tile& to, int f) { stage_features(to, k, columns, f); });
  }
  // Computes the warp's rows of K K^T of a chunk, and their products z.k with the z before the chunk, if there is one.
  // Leaves shared memory free.
  FWP_DEVICE void gram_of_keys(Strip<8>& a, float (&found)[2], int i) const {
    const int rows = keys(i);
    const bool with_z = c.normalize_output && has_state(i);
    Strip<2> kz;
    Units<8> units;
    Units<2> kz_units;
    clear(a), clear(kz);
    begin<8>(units), begin<2>(kz_units);
    each_staged(
        feature_tiles(),
        [&](int f) {
          stage_features(turn(s.x, f), x_k(i), rows, f);
          if (with_z) stage(turn(s.y, f), state(i).from(chunk * f, 0), width(f), 16);
        },
        [&](int f) {
          const Tile k = turn(s.x, f);
          if (!owns(rows)) return;
          multiply<false, true>(a, units, k, k, width(f), rows);
          if (with_z) multiply<false, false>(kz, kz_units, k, turn(s.y, f), width(f), 16);
        });
    end<8>(a, units, rows), end<2>(kz, kz_units, 16);
    FWP_UNROLL (int r = 0; r < 2; ++r) found[r] = shuffle(kz[0][2 * r], lane & ~3);
  }
};

}  // namespace fwp::gpu
