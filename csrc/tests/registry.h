// The list of cases. main.cpp does without the instructions that cases are compiled for.
#pragma once

#include <cstdint>

namespace learnsolve::test {

class Test {
 public:
  Test(const char* name, void (*run)());  // main.cpp
  const char* const name;
  void (*const run)();
  Test* const next;
};

// The allocations of this thread until one fails; negative: none does.
extern thread_local int64_t allocations_left;

}  // namespace learnsolve::test

// LS_TEST(name) { ... } enters a case into the list, which main.cpp runs.
#define LS_TEST(name)                                              \
  static void test_##name();                                       \
  static learnsolve::test::Test entry_##name(#name, &test_##name); \
  static void test_##name()
