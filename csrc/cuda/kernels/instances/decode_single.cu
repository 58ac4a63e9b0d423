#include "../decode.cuh"
#include "../fold.cuh"

namespace fwp::gpu {
template int decode_bytes_of<Single>(const DecodeCall&);
template const char* launch_decode<Single>(const DecodeCall&, void*);
template const char* launch_fold<Single>(const DecodeCall&, void*);
}
