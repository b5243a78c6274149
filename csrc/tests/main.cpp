// Usage: kernels_<policy>_<isa>. Exit status 0: all passed, 1: a case failed, 77: not on this machine.
#include <unistd.h>

#include <cstdio>

#include "tests/registry.h"

namespace learnsolve::test {
namespace {
Test* last = nullptr;
}
Test::Test(const char* name_, void (*run_)()) : name(name_), run(run_), next(last) { last = this; }
}  // namespace learnsolve::test

// Before the list is filled: in the sanitizers' builds of the cases that takes the instructions already.
#if defined(__x86_64__)
__attribute__((constructor(101))) static void leave_without_instructions() {
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("x86-64-v3"), v4 = __builtin_cpu_supports("x86-64-v4");
  if (LEARNSOLVE_TEST_LEVEL <= (v4 ? 4 : v3 ? 3 : 0)) return;
  constexpr char message[] = "this machine does not have the instructions\n";
  _exit(write(STDOUT_FILENO, message, sizeof message - 1) > 0 ? 77 : 1);
}
#endif

int main() {
  int count = 0;
  for (auto* test = learnsolve::test::last; test; test = test->next, ++count) test->run();
  std::printf("%d passed\n", count);
}
