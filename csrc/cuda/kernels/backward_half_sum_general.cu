#include "backward.cuh"

namespace fwp::gpu {
template const char* launch_backward<Half, false, true>(const Call&, void*);
}
