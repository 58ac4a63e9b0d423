// Decoding on the CPU: checks the tables and runs one task for each head of a row, or of rows that share a source.
#include "../common/decode_operators.h"

#include <torch/library.h>

#include <vector>

#include "capability.h"
#include "glue.h"

namespace fwp {
namespace {

// Checks that every entry of a table is a row of storage, so that nothing outside of it is read.
void check_table(const char* op, const char* name, const Tensor& table, int64_t columns, int64_t end) {
  const int32_t* p = table.const_data_ptr<int32_t>();
  const int64_t ld = table.dim() > 1 ? table.size(1) : 1;
  if (columns == 0) return;  // a table without columns may have any number of rows
  bool inside = true;
  for (int64_t r = 0; r < table.size(0); ++r)
    for (int64_t j = 0; j < columns; ++j) inside = inside & (uint32_t(p[r * ld + j]) < uint64_t(end));
  TORCH_CHECK_INDEX(inside, op, ": ", name, " names a row outside of 0 .. ", end - 1);
}

// Calls task(i, scratch) for i < count, by several threads if `work`, the work of one task, is worth waking them.
template <class T, class F> void run(const DecodeCall<T>& c, int64_t count, int64_t work, F task) {
  const std::size_t size = chosen_kernels<T>().decode.scratch(c);
  const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(1, work));
  at::parallel_for(0, count, grain, [&](int64_t first, int64_t last) {
    T* own = scratch<T>(size);
    for (int64_t i = first; i < last; ++i) task(i, own);
  });
}

void check_tables(const Block& block) {
  if (block.ancestors) check_table(block.op, "ancestors", *block.ancestors, block.count, block.stored);
  else check_table(block.op, "rows", block.rows, block.count ? 1 : 0, block.stored);
  if (block.W) check_table(block.op, "rows", block.rows, 1, block.W->size(0));
}

// Describes a call, and checks the tables of what it describes.
template <class Describe> auto with_tables(const Block& block, const Describe& describe) {
  return [&](Fields& f, auto& c) {
    check_is(block.op, "written", block.written, block.keys.scalar_type());
    describe(f, c);
    check_tables(block);
  };
}

struct CpuDecoding {
  template <class Describe>
  static void decode(const Block& block, bool writes, const Tensor& q, const Describe& describe) {
    with_call<DecodeCall>(block.op, "q", q, with_tables(block, describe), [&](const auto& c, auto number) {
      using T = decltype(number);
      const DecodeKernels<T>& kernels = chosen_kernels<T>().decode;
      const int64_t R = c.rows, H = c.heads, count = c.count;
      const int64_t work = c.tokens * ((count + c.tokens) * (c.d_dot + c.d_value) + (c.W ? c.d_dot * c.d_value : 0));
      if (writes) {
        int32_t* table = block.ancestors->mutable_data_ptr<int32_t>();
        for (int64_t r = 0; r < R; ++r)
          for (int64_t t = 0; t < c.tokens; ++t) table[r * block.room + count + t] = static_cast<int32_t>(r);
        run(c, R * H, work, [&](int64_t i, T* own) { kernels.step(c, i / H, i % H, own); });
        return;
      }
      // Neighbouring rows that read the same source are served together.
      std::vector<int64_t> starts;
      const int32_t* source = c.state_rows;
      for (int64_t r = 0; r < R; ++r)
        if (r == 0 || block.ancestors || source[r] != source[r - 1]) starts.push_back(r);
      starts.push_back(R);
      run(c, (int64_t(starts.size()) - 1) * H, work,
          [&](int64_t i, T* own) { kernels.read(c, starts[i / H], starts[i / H + 1], i % H, own); });
    });
  }

  template <class Describe> static void fold(const Block& block, const Tensor& keys, const Describe& describe) {
    with_call<DecodeCall>(block.op, "keys", keys, with_tables(block, describe), [&](const auto& c, auto number) {
      using T = decltype(number);
      const DecodeKernels<T>& kernels = chosen_kernels<T>().decode;
      const int64_t H = c.heads, work = 32768;
      run(c, c.rows * H, work, [&](int64_t i, T* own) { kernels.fold(c, i / H, i % H, own); });
    });
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(fwp, CPU, m) {
  m.impl("decode", &decode<CpuDecoding>);
  m.impl("fold", &fold<CpuDecoding>);
}

}  // namespace fwp
