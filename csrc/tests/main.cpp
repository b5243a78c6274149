// Usage: kernels_<policy>_<isa> ISA. Exit status 0: all passed, 1: a case failed, 77: not on this machine.
#include <cstdio>
#include <cstring>

#include "tests/registry.h"

namespace learnsolve::test {
namespace {
Test* last = nullptr;
}
Test::Test(const char* name_, void (*run_)()) : name(name_), run(run_), next(last) { last = this; }
}  // namespace learnsolve::test

int main(int argc, char** argv) {
  const char* isa = argc > 1 ? argv[1] : "baseline";
#if defined(__x86_64__)
  if ((std::strcmp(isa, "v3") == 0 && !__builtin_cpu_supports("x86-64-v3")) ||
      (std::strcmp(isa, "v4") == 0 && !__builtin_cpu_supports("x86-64-v4"))) {
    std::printf("%s: not on this machine\n", isa);
    return 77;
  }
#endif
  int count = 0;
  for (auto* test = learnsolve::test::last; test; test = test->next, ++count) test->run();
  std::printf("%s: %d passed\n", isa, count);
}
