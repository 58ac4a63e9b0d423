// Inputs and results of recur_lstm and its backward, checked; fwp_fairseq/ops/lstm_recurrence.py says what they compute.
#pragma once

#include "recurrence_inputs.h"

namespace fwp {

// What both are given, checked: k, v and beta have the three gates' heads one after another.
struct LstmInputs : RecurrenceInputs {
  OptionalTensor h, c;

  LstmInputs(const char* op, const Tensor& k, const Tensor& v, const Tensor& beta, const OptionalTensor& key_padding_mask,
             const OptionalTensor& h, const OptionalTensor& c)
      : RecurrenceInputs(op, k, v, beta, key_padding_mask, std::nullopt), h(h), c(c) {
    TORCH_CHECK_VALUE(heads() % 3 == 0, op, ": k has ", heads(), " heads, expected those of three gates");
    if (h) check_carried(op, "h", *h);
    if (c) check_carried(op, "c", *c);
  }
  void make_contiguous() {
    RecurrenceInputs::make_contiguous();
    h = whole(h);
    c = whole(c);
  }

  int64_t nets() const { return heads() / 3; }  // heads of the net

  void check_carried(const char* op, const char* name, const Tensor& given) const {
    check(op, name, given, {batch(), nets(), d});
  }
  void check_read(const char* op, const char* name, const Tensor& given) const {
    check(op, name, given, {batch(), length(), nets(), d});
  }
  Tensor new_carried() const { return at::empty({batch(), nets(), d}, x.options()); }
  Tensor new_read() const { return new_rows(x.narrow(2, 0, nets()), d); }

  template <class C> void describe(C& call) const {
    RecurrenceInputs::describe(call);
    call.heads = static_cast<decltype(call.heads)>(nets());
    point(call.initial_y, h);
    point(call.initial_c, c);
  }
};

// What the forward gives, and the matrices that it begins with.
struct LstmResults {
  OptionalTensor initial;
  Tensor out, last, h, c, cells, gates, written;

  LstmResults(const char* op, const LstmInputs& in, const OptionalTensor& R) {
    if (R) in.check_matrix(op, "R", *R);
    out = in.new_read();
    last = in.new_matrix();
    h = in.new_carried();
    c = in.new_carried();
    cells = in.new_read();
    gates = new_rows(in.x);
    written = new_rows(in.x);
    initial = whole(R);
  }

  template <class C> void describe(C& call) const {
    point(call.initial_R, initial);
    point(call.out, out);
    point(call.R, last);
    point(call.y, h);
    point(call.c, c);
    point(call.cells, cells);
    point(call.gates, gates);
    point(call.written, written);
  }
};

// What the backward is given beside its inputs, checked, and the gradients that it gives.
struct LstmGradients {
  Tensor grad_out, found, cells, gates, last, written;
  OptionalTensor grad, grad_h, grad_c;
  Tensor z, k, v, beta, initial, initial_h, initial_c;

  LstmGradients(const char* op, const LstmInputs& in, const Tensor& given_out, const OptionalTensor& given,
                const OptionalTensor& given_h, const OptionalTensor& given_c, const Tensor& found, const Tensor& cells,
                const Tensor& gates, const Tensor& last, const Tensor& written) {
    in.check_read(op, "grad_out", given_out);
    in.check_read(op, "found", found);
    in.check_read(op, "cells", cells);
    in.check_rows(op, "gates", gates);
    in.check_rows(op, "written", written);
    in.check_matrix(op, "last_R", last);
    if (given) in.check_matrix(op, "grad_R", *given);
    if (given_h) in.check_carried(op, "grad_h", *given_h);
    if (given_c) in.check_carried(op, "grad_c", *given_c);
    z = new_rows(in.x);
    k = new_rows(in.x);
    v = new_rows(in.x);
    beta = new_rows(in.beta);
    initial = in.new_matrix();
    initial_h = in.new_carried();
    initial_c = in.new_carried();
    grad_out = with_contiguous_rows(given_out);
    this->found = with_contiguous_rows(found);
    this->cells = with_contiguous_rows(cells);
    this->gates = with_contiguous_rows(gates);
    this->written = with_contiguous_rows(written);
    this->last = last.contiguous();
    grad = whole(given);
    grad_h = whole(given_h);
    grad_c = whole(given_c);
  }

  template <class C> void describe(C& call) const {
    point(call.grad_out, grad_out);
    point(call.found, found);
    point(call.found_cells, cells);
    point(call.found_gates, gates);
    point(call.found_written, written);
    point(call.last_R, last);
    point(call.grad_R, grad);
    point(call.grad_y, grad_h);
    point(call.grad_c, grad_c);
    point(call.grad_z, z);
    point(call.grad_k, k);
    point(call.grad_v, v);
    point(call.grad_beta, beta);
    point(call.grad_initial_R, initial);
    point(call.grad_initial_y, initial_h);
    point(call.grad_initial_c, initial_c);
  }
};

}  // namespace fwp
