// The limit of what is kept of large results (buffers.h), for Python (learnsolve/ops/limits.py).
#include "ops/buffers.h"

#define LS_EXPORT extern "C" __attribute__((visibility("default")))

// Returns the limit until now, in bytes.
LS_EXPORT size_t learnsolve_set_buffer_pool_limit(size_t limit) {
  return learnsolve::Buffers::get().set_limit(limit);
}
LS_EXPORT void learnsolve_drop_buffers() { learnsolve::Buffers::get().drop(); }
// Bytes that are kept now.
LS_EXPORT size_t learnsolve_buffer_bytes() { return learnsolve::Buffers::get().total(); }
