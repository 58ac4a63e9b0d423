#include "forward.cuh"

namespace fwp::gpu {
template const char* launch_forward<Half, false, Kind::favor>(const Call&, void*);
}
