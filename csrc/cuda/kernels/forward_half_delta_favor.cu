#include "forward.cuh"

namespace fwp::gpu {
template const char* launch_forward<Half, true, Kind::favor>(const Call&, void*);
}
