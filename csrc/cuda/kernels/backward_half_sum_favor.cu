#include "backward.cuh"

namespace fwp::gpu {
template const char* launch_backward<Half, false, Kind::favor>(const Call&, void*);
}
