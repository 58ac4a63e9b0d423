#include "forward.cuh"

namespace fwp::gpu {
template const char* launch_forward<Half, true, true>(const Call&, void*);
}
