// Backward of one head, with the notation of head.h.
//
// The backward recomputes phi, P and U. It keeps the state at the start of each chunk in scratch, and goes from the
// last chunk to the first. dX is the gradient of X; dW is that of the state after the chunk, and the last column of dN
// is the gradient of the denominator:
//
//     dU = P^T dN + K dW;  Z = (I + diag(rate) stril(K K^T))^-T dU;  dY = -rate Z
//     dP = M o (dN U^T);  dKK = stril(dY U^T)
//     dQ = dP K + dN W^T;  dK = dP^T Q + (dKK + dKK^T) K + U dW^T + dY W^T
//     dV = beta Z;  dbeta = Z.(V - ...);  dW <- dW + Q^T dN + K^T dY
//
// For rules that decay, the gradient of keep_t (1 - beta_t or alpha_t) is computed from those of the cumulative
// products M and left without a division: with H_t = dM_t + keep_{t+1} H_{t+1}, it is H_t.M_{t-1}, plus the same for
// left. Under the gated delta rule this is the gradient of alpha_t; under the gated rule, that of beta_t is H_tt minus
// this.
#pragma once

#include "instruction_set.h"

#include "gradient_arrays.h"

namespace fwp::FWP_NAMESPACE {
namespace {

template <class T> struct HeadBackward : GradientArrays<T> {
  using Base = GradientArrays<T>;
  using Number = T;
  using Base::transposed, Base::b, Base::beta, Base::c, Base::columns, Base::corrects, Base::decays, Base::denominator,
      Base::d_decay_to_end, Base::dk, Base::d_total_decay, Base::dleft, Base::dN, Base::dot_row, Base::dot_values,
      Base::dP, Base::dP_t, Base::dq, Base::dU, Base::dW, Base::dx, Base::dY, Base::decay_to_end, Base::h, Base::has_dW,
      Base::has_W, Base::k, Base::keep, Base::total_decay, Base::KK, Base::lda, Base::ldp, Base::left, Base::M,
      Base::QW, Base::P, Base::pair_gradient, Base::plan, Base::d_seen, Base::q, Base::rate, Base::running,
      Base::scale_square, Base::row_sums, Base::seen, Base::shift_row, Base::states, Base::transpose,
      Base::transpose_square, Base::U, Base::U_transposed, Base::unmasked, Base::unmasked_KK, Base::unweighed_Y,
      Base::V, Base::W, Base::Y;

  using Base::Base;

  void enter(idx n) {  // the state at the start of chunk n
    W = states + n * c.d_dot * plan.wide;
    has_W = n > 0 || c.initial_W;
  }

  // Stores the gradient of a tile of queries; adds to dk and dU of the chunk in k (from_gram) and to dW (need_dW).
  void read_backward(idx t0, idx count, bool from_gram, bool need_dW) {
    Base::load_queries(t0, count);
    for (idx t = 0; t < count; ++t) denominator[t] = c.eps;
    const bool decayed = decays && from_gram;
    const bool reads_W = has_W && (c.normalize_output || decayed);
    if (reads_W) Base::state_product(q, W, QW);
    if (has_W && c.normalize_output)
      for (idx t = 0; t < count; ++t)
        denominator[t] += Base::state_weight(t, from_gram) * QW[t * plan.wide + c.d_value];
    if (from_gram) Base::compute_P(unmasked);
    Base::load_rows(c.grad_out, t0, count, false, dN);
    for (idx i = count * plan.wide; i < q.padded * plan.wide; ++i) dN[i] = 0;
    if (c.normalize_output)
      for (idx t = 0; t < count; ++t) {
        const T inverse = denominator[t] == 0 ? T(0) : 1 / denominator[t];
        denominator[t] = inverse;
        T total = 0;  // dN.N, so far only the part read from W
        for (idx j = 0; j < c.d_value; ++j) dN[t * plan.wide + j] *= inverse;
        if (has_W) total = dot_values(dN, QW, t);
        row_sums[t] = Base::state_weight(t, from_gram) * total;
      }
    if (from_gram) pair_gradient(dN, q.padded, plan.causal);
    for (idx i = 0; i < q.padded; ++i) {
      const idx last = i >= count ? -1 : plan.causal ? i : k.tokens - 1;
      T shift = 0;  // gradient of the denominator
      if (c.normalize_output && i < count) {
        if (from_gram) row_sums[i] += dot_row(i, last);
        shift = -denominator[i] * row_sums[i];
        dN[i * plan.wide + c.d_value] = shift;
      }
      if (from_gram) shift_row(i, last, shift);
    }
    if (decayed) mask_backward(count);
    if (has_W) {
      transpose(dN, count, transposed);
      product<false>(c.d_dot, q.padded, columns, Base::rows(W), transposed, lda, dq, q.ld);
      for (idx t = 0; decayed && t < count; ++t)
        for (idx i = 0; i < c.d_dot; ++i) dq[i * q.ld + t] *= Base::state_weight(t, true);
    } else {
      for (idx i = 0; i < c.d_dot * q.ld; ++i) dq[i] = 0;
    }
    if (from_gram) gram_backward(count);
    store_side_gradient(c, q, dq, dx, c.grad_q, b, h, t0);
    if (need_dW) {
      for (idx t = 0; decayed && t < count; ++t)
        for (idx j = 0; j < plan.wide; ++j) dN[t * plan.wide + j] *= Base::state_weight(t, true);
      Base::write(q, dN, dW, has_dW);
      has_dW = true;
    }
  }

  // Adds to dq, dk and dU what follows from dP and dN of a tile of `count` queries.
  FWP_INLINE void gram_backward(idx count) const {
    transpose_square(q.padded, k.padded);
    scale_square(dP_t, k.padded, q.padded, k.scale);
    scale_square(dP, q.padded, k.padded, q.scale);
    const View<T> keys = Base::features(k), queries = Base::features(q);
    if (plan.causal) {
      // dU += P^T dN from the last row up, so that the triangle is a lower one.
      const idx e = count - 1;
      triangle_product<true>(count, plan.narrow, View<T>{P + e * ldp + e, -1, -ldp}, dN + e * plan.wide, -plan.wide,
                             dU + e * plan.wide, -plan.wide);
      product<true, Band::upper>(c.d_dot, q.padded, k.tokens, keys, dP_t, lda, dq, q.ld);
      product<true, Band::lower>(c.d_dot, k.padded, count, queries, dP, lda, dk, k.ld);
    } else {
      product<true>(k.tokens, plan.narrow, count, View<T>{P, 1, ldp}, dN, plan.wide, dU, plan.wide);
      product<true>(c.d_dot, q.padded, k.tokens, keys, dP_t, lda, dq, q.ld);
      product<true>(c.d_dot, k.padded, count, queries, dP, lda, dk, k.ld);
    }
  }

  // Converts dP from the gradient of P to that of Q K^T, and computes the gradients of M and left.
  void mask_backward(idx count) {
    for (idx t = 0; t < count; ++t) {
      const T* m = plan.causal ? M + t * ldp : decay_to_end;
      for (idx j = 0; j < k.padded; j += width<T>) {
        const Vec<T> d = load(dP + t * lda + j), dm = d * load(unmasked + t * ldp + j);
        if (plan.causal) store(unmasked + t * ldp + j, dm);
        else store(d_decay_to_end + j, load(d_decay_to_end + j) + dm);
        store(dP + t * lda + j, d * load(m + j));
      }
      T total = 0;
      for (idx j = 0; has_W && j < columns; ++j) total += dN[t * plan.wide + j] * QW[t * plan.wide + j];
      if (plan.causal) dleft[t] = total;
      else d_total_decay += total;
    }
  }

  // Propagates dW, the gradient of the state after the chunk, through the write of a rule that decays: to K and U with
  // the weights `decay_to_end`, and to the state before the chunk with the factor `total_decay`. If has_dW, dU and dk
  // contain K dW and U dW^T on entry.
  void write_decay_backward(idx count) {
    d_total_decay = 0;
    for (idx j = 0; j < k.padded; ++j) d_decay_to_end[j] = 0;
    for (idx t = 0; t < count; ++t) dleft[t] = 0;
    if (!has_dW) return;
    for (idx t = 0; t < count; ++t)
      for (idx j = 0; j < plan.wide; ++j) {
        d_decay_to_end[t] += dU[t * plan.wide + j] * U[t * plan.wide + j];
        dU[t * plan.wide + j] *= decay_to_end[t];
      }
    for (idx i = 0; i < c.d_dot; ++i)
      for (idx t = 0; t < count; ++t) dk[i * k.ld + t] *= decay_to_end[t];
    Vec<T> total{};
    for (idx i = 0; i < c.d_dot * plan.wide; i += width<T>) {
      const Vec<T> g = load(dW + i);
      if (has_W) total += g * load(W + i);
      store(dW + i, g * splat(total_decay));
    }
    d_total_decay = sum_of_lanes<T>(total);
  }

  // Computes the gradients of alpha and, under a rule that weighs writes, of beta from those of M and left.
  void decay_backward(idx t0, idx count) {
    const bool has_dM = plan.causal || corrects;  // otherwise only M's last row was used
    for (idx j = 0; j < k.padded; ++j) running[j] = d_decay_to_end[j];
    T running_left = d_total_decay;
    for (idx t = count - 1; t >= 0; --t) {
      running_left += dleft[t];
      const T own = running[t] + (has_dM ? unmasked[t * ldp + t] : T(0));
      Vec<T> sum{};
      for (idx j = 0; j < k.padded; j += width<T>) {
        Vec<T> x = load(running + j);
        if (has_dM) x += load(unmasked + t * ldp + j);
        if (t > 0) sum += x * load(M + (t - 1) * ldp + j);
        store(running + j, x * splat(keep[t]));
      }
      const T dkeep = sum_of_lanes<T>(sum) + running_left * (t > 0 ? left[t - 1] : T(1));
      running_left *= keep[t];
      const bool pad = Base::is_pad(t0 + t);
      if (weighs_writes(c.rule)) *c.grad_beta.at(b, t0 + t, h) = pad ? T(0) : beta_gradient(c.rule, own, dkeep);
      if (takes_alpha(c.rule)) *c.grad_alpha.at(b, t0 + t, h) = pad ? T(0) : dkeep;
    }
  }

  // Propagates the complete dU through the triangular solve to V, beta, keys and the state before the chunk.
  void write_backward(idx t0, idx count, bool need_dW) {
    if (!corrects) {
      if (decays) decay_backward(t0, count);
      store_values(t0, count, dU, nullptr);
      return;
    }
    const idx e = count - 1;
    for (idx i = 0; i < round_up(count, width<T>) * plan.wide; ++i) dY[i] = 0;
    // The transposed system runs from the last row up: dU becomes Z, dY = -rate Z.
    triangle_solve<true>(count, plan.narrow, View<T>{KK + e * ldp + e, -1, -ldp}, rate + e, -1, dU + e * plan.wide,
                         -plan.wide, dY + e * plan.wide, -plan.wide);
    const T* Z = dU;
    Base::load_rows(c.v, t0, count, true, V);
    for (idx t = 0; t < count; ++t) {
      T dbeta = dot_values(Z, V, t);
      const T drate = -dot_values(Z, Y, t);
      d_seen[t] = 0;
      if (!c.normalize_output) {
        dbeta += drate;
      } else if (seen[t] != 0) {
        dbeta += drate / seen[t];
        d_seen[t] = -drate * rate[t] / seen[t];
      }
      for (idx j = c.d_value; j < plan.wide; ++j) dY[t * plan.wide + j] = 0;
      if (c.normalize_output) dY[t * plan.wide + c.d_value] = d_seen[t];
      *c.grad_beta.at(b, t0 + t, h) = Base::is_pad(t0 + t) ? T(0) : dbeta;
    }
    store_values(t0, count, Z, beta);
    pair_gradient(dY, k.padded, true);
    for (idx i = 0; i < k.padded; ++i) shift_row(i, i < count ? i - 1 : -1, i < count ? d_seen[i] : T(0));
    if (decays) {
      mask_keys_backward(count);
      decay_backward(t0, count);
    }
    transpose_square(k.padded, k.padded);
    for (idx i = 0; i < k.padded; ++i)
      for (idx j = 0; j < k.padded; j += width<T>) {
        T* d = dP + i * lda + j;
        store(d, (load(d) + load(dP_t + i * lda + j)) * splat(k.scale[i]));
      }
    product<true>(c.d_dot, k.padded, count, Base::features(k), dP, lda, dk, k.ld);
    if (has_W) {
      transpose(dY, count, transposed);
      product<true>(c.d_dot, k.padded, columns, Base::rows(W), transposed, lda, dk, k.ld);
    }
    if (need_dW) {
      Base::write(k, dY, dW, has_dW);
      has_dW = true;
    }
  }

  // Under the gated delta rule, converts dP from the gradient of M o K K^T to that of K K^T, and dY to that of K W.
  // Adds to the gradients of M and left.
  void mask_keys_backward(idx count) {
    for (idx t = 0; t < count; ++t) {
      for (idx j = 0; j < k.padded; j += width<T>) {
        const Vec<T> d = load(dP + t * lda + j);
        const Vec<T> dm = d * load(unmasked_KK + t * ldp + j);
        store(unmasked + t * ldp + j, plan.causal ? dm + load(unmasked + t * ldp + j) : dm);
        store(dP + t * lda + j, d * load(M + t * ldp + j));
      }
      T total = 0;
      for (idx j = 0; has_W && j < columns; ++j) total += dY[t * plan.wide + j] * unweighed_Y[t * plan.wide + j];
      dleft[t] += total;
    }
    Base::scale_rows(count, left, dY, plan.wide);
  }

  void store_values(idx t0, idx count, const T* rows, const T* by) const {
    for (idx t = 0; t < count; ++t) {
      Base::store_row(rows + t * plan.wide, by ? by[t] : T(1), Base::is_pad(t0 + t), c.grad_v.at(b, t0 + t, h),
                      Base::ahead(c.grad_v));
    }
  }

  void backward() {
    if (c.initial_W) Base::copy_state_in(c.initial_W, c.initial_z, states);
    has_dW = c.grad_W != nullptr;
    if (has_dW) Base::copy_state_in(c.grad_W, c.grad_z, dW);
    const idx size = c.d_dot * plan.wide;
    if (plan.chunks > 1 || plan.reads_state)
      for (idx n = 0; n < plan.chunks; ++n) {
        enter(n);
        if (n + 1 == plan.chunks && !plan.reads_state) break;
        Base::load_chunk(n * plan.chunk, Base::chunk_length(n));
        if (has_W)
          for (idx i = 0; i < size; ++i) W[size + i] = W[i];
        Base::write_chunk(W + size);
      }
    if (plan.reads_state) {
      enter(plan.chunks);
      Base::for_tiles([&](idx t, idx tile) { read_backward(t, tile, false, true); });
    }
    for (idx n = plan.chunks - 1; n >= 0; --n) {
      enter(n);
      const idx t0 = n * plan.chunk, count = Base::chunk_length(n);
      const bool need_dW = has_W;
      Base::load_chunk(t0, count);
      transpose(U, count, U_transposed);
      if (has_dW) {
        Base::state_product(k, dW, dU);
        product<false>(c.d_dot, k.padded, columns, Base::rows(dW), U_transposed, lda, dk, k.ld);
      } else {
        for (idx i = 0; i < c.d_dot * k.ld; ++i) dk[i] = 0;
        for (idx i = 0; i < count * plan.wide; ++i) dU[i] = 0;
      }
      if (decays) write_decay_backward(count);
      if (plan.causal) read_backward(t0, count, true, need_dW);
      else if (!plan.reads_state) Base::for_tiles([&](idx t, idx tile) { read_backward(t, tile, true, need_dW); });
      write_backward(t0, count, need_dW);
      store_side_gradient(c, k, dk, dx, c.grad_k, b, h, t0);
    }
    if (c.grad_initial_W) {
      if (!has_dW)
        for (idx i = 0; i < size; ++i) dW[i] = 0;
      Base::copy_state_out(dW, c.grad_initial_W, c.grad_initial_z);
    }
  }
};

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
