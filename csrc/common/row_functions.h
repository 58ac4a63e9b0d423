// The names of the functions of rows, and the memory layout of rows, for every device. This file includes no header of
// torch. fwp_fairseq/feature_maps/softmax_pair.py and unit_rows.py explain what the functions compute.
#pragma once

#include <cstdint>

#include "names.h"

namespace fwp {

// The functions that divide a row. Each is an operator with this name and an argument eps.
#define FWP_UNIT_ROWS(EACH) EACH(to_length_one) EACH(elu_to_length_one) EACH(to_rms_one)

enum class RowFunction { softmax_pair, FWP_UNIT_ROWS(FWP_ENUMERATOR) };
#define FWP_AND_ONE(name) +1
constexpr int row_functions = 1 FWP_UNIT_ROWS(FWP_AND_ONE);
#undef FWP_AND_ONE

// One of the dimensions that number the rows: its size, and its strides in the three tensors of RowTensors: x, beside
// and result.
struct RowDim {
  std::int64_t size, strides[3];
};

}  // namespace fwp
