// Forward and backward of one head as functions. Scratch belongs to the thread that runs the head; nothing is shared, so
// results do not depend on the threads. Included by instruction_set.h.

template <class T> std::size_t forward_scratch(const Call<T>& c) {
  Arena<T> arena{nullptr};
  Head<T>(c, 0, 0, arena);
  return arena.used;
}
template <class T> std::size_t backward_scratch(const Call<T>& c) {
  Arena<T> arena{nullptr};
  HeadBackward<T>(c, 0, 0, arena);
  return arena.used;
}
template <class T> void forward(const Call<T>& c, idx b, idx h, T* scratch) {
  Arena<T> arena{scratch};
  Head<T>(c, b, h, arena).forward();
}
template <class T> void backward(const Call<T>& c, idx b, idx h, T* scratch) {
  Arena<T> arena{scratch};
  HeadBackward<T>(c, b, h, arena).backward();
}
template <class T> constexpr Kernels<T> kernels{forward_scratch<T>, backward_scratch<T>, forward<T>, backward<T>};
