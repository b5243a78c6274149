// Long analyses can be interrupted: every few milliseconds they call a function of the caller, which may
// throw.
#pragma once

#include <cstdint>

namespace learnsolve::analysis {

// module.cpp sets it to a function that has Python handle its signals.
inline void (*on_pulse)() = nullptr;

// A loop calls it with the number of steps that it takes.
class Pulse {
 public:
  void operator()(int64_t steps) {
    left_ -= steps;
    if (left_ < 0) [[unlikely]]
      beat();
  }

 private:
  static constexpr int64_t kSteps = int64_t{1} << 21;
  void beat() {
    left_ = kSteps;
    if (on_pulse) on_pulse();
  }
  int64_t left_ = kSteps;
};

}  // namespace learnsolve::analysis
