// Rows of one head on their way into scratch, where they are padded with zeros to whole vectors, and back. Included by
// instruction_set.h.

// Rows of a head are far apart, but those of the next one follow them: they are asked for while this one is computed.
template <bool ToWrite, class T> FWP_INLINE void expect_row(const T* row, idx d) {
  for (idx i = 0; i < d; i += 64 / idx(sizeof(T))) prefetch<ToWrite>(row + d + i);
}
template <class T> FWP_INLINE void fetch_row(T* to, const T* from, idx d, idx D) {
  expect_row<false>(from, d);
  for (idx i = 0; i < d; ++i) to[i] = from[i];
  for (idx i = d; i < D; ++i) to[i] = 0;
}
template <class T> FWP_INLINE void put_row(T* to, const T* from, idx d) {
  expect_row<true>(to, d);
  for (idx i = 0; i < d; ++i) to[i] = from[i];
}
