#include "backward.cuh"

namespace fwp::gpu {
template const char* launch_backward<Single, true, false>(const Call&, void*);
}
