// Which instruction set the kernels use: the best that the machine has, or the one asked for.
#include <cstring>

#include "kernels/kernels.h"

#define LS_EXPORT extern "C" __attribute__((visibility("default")))

namespace learnsolve {

namespace baseline {
extern const AllKernels all_kernels;
}
#ifdef LEARNSOLVE_X86_VARIANTS
namespace v3 {
extern const AllKernels all_kernels;
}
namespace v4 {
extern const AllKernels all_kernels;
}
#endif

namespace {

struct Choice {
  const char* name;
  const AllKernels* table;
  bool supported;
};

// Best last.
#ifdef LEARNSOLVE_X86_VARIANTS
const Choice choices[] = {
    {"baseline", &baseline::all_kernels, true},
    {"x86-64-v3", &v3::all_kernels, __builtin_cpu_supports("x86-64-v3") != 0},
    {"x86-64-v4", &v4::all_kernels, __builtin_cpu_supports("x86-64-v4") != 0},
};
#else
const Choice choices[] = {{"baseline", &baseline::all_kernels, true}};
#endif
constexpr int n_choices = sizeof(choices) / sizeof(choices[0]);

const Choice* best() {
  const Choice* found = &choices[0];
  for (const Choice& c : choices)
    if (c.supported) found = &c;
  return found;
}

const Choice* chosen = best();

}  // namespace

const AllKernels& kernels() { return *chosen->table; }

}  // namespace learnsolve

// Python reads and sets the choice through these three (learnsolve/_library.py).
LS_EXPORT const char* learnsolve_isa() { return learnsolve::chosen->name; }

LS_EXPORT const char* learnsolve_isa_name(int i) {
  return i < learnsolve::n_choices ? learnsolve::choices[i].name : nullptr;
}

// 0: done; 1: unknown name; 2: this machine does not have it.
LS_EXPORT int learnsolve_select_isa(const char* name) {
  for (const auto& c : learnsolve::choices)
    if (std::strcmp(c.name, name) == 0) {
      if (!c.supported) return 2;
      learnsolve::chosen = &c;
      return 0;
    }
  return 1;
}
