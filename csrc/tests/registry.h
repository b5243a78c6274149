// The list of cases. It includes nothing: main.cpp does without the instructions that cases are compiled for.
#pragma once

namespace learnsolve::test {

class Test {
 public:
  Test(const char* name, void (*run)());  // main.cpp
  const char* const name;
  void (*const run)();
  Test* const next;
};

}  // namespace learnsolve::test

// LS_TEST(name) { ... } enters a case into the list, which main.cpp runs.
#define LS_TEST(name)                                              \
  static void test_##name();                                       \
  static learnsolve::test::Test entry_##name(#name, &test_##name); \
  static void test_##name()
