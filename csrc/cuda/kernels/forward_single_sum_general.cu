#include "forward.cuh"

namespace fwp::gpu {
template const char* launch_forward<Single, false, true>(const Call&, void*);
}
