// The functions of rows by name, and how rows lie in memory, for every device. No torch header.
// fwp_fairseq/feature_maps/softmax_pair.py and unit_rows.py say what they compute.
#pragma once

#include <cstdint>

namespace fwp {

// Those that divide a row: each is an operator of this name, with eps.
#define FWP_UNIT_ROWS(EACH) EACH(to_length_one) EACH(elu_to_length_one) EACH(to_rms_one)

#define FWP_NAME_AND_COMMA(name) name,
enum class RowFunction { softmax_pair, FWP_UNIT_ROWS(FWP_NAME_AND_COMMA) };
#undef FWP_NAME_AND_COMMA

// One of the dimensions that number the rows: how many steps it has, and how far apart they are in x, in what stands
// beside x and in the result.
struct RowDim {
  std::int64_t size, strides[3];
};

}  // namespace fwp
