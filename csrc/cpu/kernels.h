// The table of kernels of the instruction set that the source file has chosen, and the function that returns it.
// Scratch belongs to the thread that runs a head; nothing is shared, so results do not depend on the threads.
#pragma once

#include "instruction_set.h"

#include "decode.h"
#include "head_backward.h"
#include "lstm.h"
#include "softmax_pair.h"
#include "source.h"
#include "unit_rows.h"
#include "window.h"

namespace fwp::FWP_NAMESPACE {
namespace {

// Scratch size of H, by a dry run on an empty arena.
template <class H, class C> std::size_t scratch_of(const C& c) {
  Arena<typename H::Number> arena{nullptr};
  H(c, 0, 0, arena);
  return arena.used;
}
template <class H, class C, class T> void forward(const C& c, idx b, idx h, T* scratch) {
  Arena<T> arena{scratch};
  H(c, b, h, arena).forward();
}
template <class T> void backward(const Call<T>& c, idx b, idx h, T* scratch) {
  Arena<T> arena{scratch};
  HeadBackward<T>(c, b, h, arena).backward();
}
template <class T> std::size_t decode_scratch(const DecodeCall<T>& c) {
  Arena<T> arena{nullptr};
  Decoder<T>(c, arena);
  return arena.used;
}
template <class T> void step(const DecodeCall<T>& c, idx row, idx h, T* scratch) {
  Arena<T> arena{scratch};
  Decoder<T>(c, arena).step(row, h);
}
template <class T> void read(const DecodeCall<T>& c, idx first, idx last, idx h, T* scratch) {
  Arena<T> arena{scratch};
  Decoder<T>(c, arena).read(first, last, h);
}
template <class T> void fold(const DecodeCall<T>& c, idx row, idx h, T* scratch) {
  Arena<T> arena{scratch};
  Decoder<T>(c, arena).fold(row, h);
}

template <class T> using ToLengthOne = UnitRow<T, Map::identity, false>;
template <class T> using EluToLengthOne = UnitRow<T, Map::elu, false>;
template <class T> using ToRmsOne = UnitRow<T, Map::identity, true>;

// The kernels of a struct whose forward and backward need the same scratch.
template <class K, class C, class T>
constexpr HeadKernels<C, T> kernels_with_scratch{{K::scratch, K::forward}, {K::scratch, K::backward}};

template <class T>
constexpr KernelTable<T> table{
    .rules = {{scratch_of<Head<T>, Call<T>>, forward<Head<T>, Call<T>, T>},
              {scratch_of<HeadBackward<T>, Call<T>>, backward<T>}},
    .decode = {decode_scratch<T>, step<T>, read<T>, fold<T>},
    .recurrence = kernels_with_scratch<Recurrent<T>, RecurrenceCall<T>, T>,
    .lstm = kernels_with_scratch<Lstm<T>, LstmCall<T>, T>,
    .window = kernels_with_scratch<Window<T>, WindowCall<T>, T>,
    .source = {scratch_of<Source<T>, SourceCall<T>>, forward<Source<T>, SourceCall<T>, T>},
    .rows = {{SoftmaxPair<T>::forward, ToLengthOne<T>::forward, EluToLengthOne<T>::forward, ToRmsOne<T>::forward},
             {SoftmaxPair<T>::backward, ToLengthOne<T>::backward, EluToLengthOne<T>::backward, ToRmsOne<T>::backward}}};

}  // namespace

const KernelTable<float>& kernels(float) { return table<float>; }
const KernelTable<double>& kernels(double) { return table<double>; }

}  // namespace fwp::FWP_NAMESPACE

#if defined(FWP_TARGET) && defined(__clang__)
#pragma clang attribute pop
#endif
