#include "backward.cuh"

namespace fwp::gpu {
template const char* launch_backward<Single, true, true>(const Call&, void*);
}
