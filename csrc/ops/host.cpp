// Which instruction set the kernels use: the best of those compiled that the machine supports, or the one
// requested.
#include <cstring>

#include "kernels/kernels.h"
#include "ops/buffers.h"

#define LS_EXPORT extern "C" __attribute__((visibility("default")))

namespace learnsolve {

bool contents_checked = false;  // ops/host.h

#ifdef LEARNSOLVE_WITH_BASELINE
namespace baseline {
AllKernels all_kernels();
}
#endif
#ifdef LEARNSOLVE_WITH_V3
namespace v3 {
AllKernels all_kernels();
}
#endif
#ifdef LEARNSOLVE_WITH_V4
namespace v4 {
AllKernels all_kernels();
}
#endif

namespace {

struct Choice {
  const char* name;
  AllKernels (*table)();
  bool supported;
};

// Best last.
const Choice choices[] = {
#ifdef LEARNSOLVE_WITH_BASELINE
    {"baseline", &baseline::all_kernels, true},
#endif
#ifdef LEARNSOLVE_WITH_V3
    {"x86-64-v3", &v3::all_kernels, __builtin_cpu_supports("x86-64-v3") != 0},
#endif
#ifdef LEARNSOLVE_WITH_V4
    {"x86-64-v4", &v4::all_kernels, __builtin_cpu_supports("x86-64-v4") != 0},
#endif
};
constexpr int n_choices = sizeof(choices) / sizeof(choices[0]);

const Choice* best() {
  const Choice* found = nullptr;
  for (const Choice& c : choices)
    if (c.supported) found = &c;
  return found;
}

const Choice* chosen = best();
AllKernels table = chosen ? chosen->table() : AllKernels{};

}  // namespace

const AllKernels& kernels() { return table; }

}  // namespace learnsolve

// Checks of contents (ops/host.h), on or off.
LS_EXPORT void learnsolve_check_contents(int on) { learnsolve::contents_checked = on != 0; }

// Python reads and sets the choice through these three (learnsolve/_library.py). The name in use is null if
// the machine has none of the compiled instruction sets.
LS_EXPORT const char* learnsolve_isa() { return learnsolve::chosen ? learnsolve::chosen->name : nullptr; }

LS_EXPORT const char* learnsolve_isa_name(int i) {
  return i < learnsolve::n_choices ? learnsolve::choices[i].name : nullptr;
}

// 0: done; 1: not compiled; 2: this machine does not have it.
LS_EXPORT int learnsolve_select_isa(const char* name) {
  for (const auto& c : learnsolve::choices)
    if (std::strcmp(c.name, name) == 0) {
      if (!c.supported) return 2;
      learnsolve::chosen = &c;
      learnsolve::table = c.table();
      return 0;
    }
  return 1;
}

// The limit of what is kept of large results (buffers.h), for Python (learnsolve/ops/limits.py). Returns the
// limit until now, in bytes.
LS_EXPORT size_t learnsolve_set_buffer_pool_limit(size_t limit) {
  return learnsolve::Buffers::get().set_limit(limit);
}
LS_EXPORT void learnsolve_drop_buffers() { learnsolve::Buffers::get().drop(); }
// Bytes that are kept now.
LS_EXPORT size_t learnsolve_buffer_bytes() { return learnsolve::Buffers::get().total(); }
