// The recurrence on any processor.
#define FWP_NAMESPACE capability_default
#define FWP_VECTOR_BYTES 16
#define FWP_RECURRENCE 1
#include "instruction_set.h"
