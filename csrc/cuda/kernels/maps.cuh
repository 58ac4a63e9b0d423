// The feature maps' own parts of the kernels.
#pragma once

#include "maps/dpfp.cuh"
#include "maps/elementwise.cuh"
#include "maps/favor.cuh"
