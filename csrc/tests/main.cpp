// Usage: kernels_<policy>_<isa>. Exit status 0: all passed, 1: a case failed, 77: not on this machine.
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <new>

#include "tests/registry.h"

namespace learnsolve::test {
namespace {
Test* last = nullptr;
}
Test::Test(const char* name_, void (*run_)()) : name(name_), run(run_), next(last) { last = this; }
thread_local int64_t allocations_left = -1;
}  // namespace learnsolve::test

// What the linker calls in place of the allocating functions (CMakeLists.txt): one of them can be made to
// fail (failing.h).
static bool fails() {
  int64_t& left = learnsolve::test::allocations_left;
  return left >= 0 && left-- == 0;
}
extern "C" {
void* __real__Znwm(std::size_t bytes);  // operator new
void* __wrap__Znwm(std::size_t bytes) { return fails() ? throw std::bad_alloc() : __real__Znwm(bytes); }
void* __real_realloc(void* memory, std::size_t bytes);
void* __wrap_realloc(void* memory, std::size_t bytes) {
  return fails() ? nullptr : __real_realloc(memory, bytes);
}
int __real_posix_memalign(void** memory, std::size_t alignment, std::size_t bytes);
int __wrap_posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  return fails() ? ENOMEM : __real_posix_memalign(memory, alignment, bytes);
}
}

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
