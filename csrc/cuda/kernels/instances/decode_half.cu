#include "../decode.cuh"
#include "../fold.cuh"

namespace fwp::gpu {
template int decode_bytes_of<Half>(const DecodeCall&);
template const char* launch_decode<Half>(const DecodeCall&, void*);
template const char* launch_fold<Half>(const DecodeCall&, void*);
}
