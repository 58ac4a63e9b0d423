#include "forward.cuh"

namespace fwp::gpu {
template const char* launch_forward<Single, true, true>(const Call&, void*);
}
