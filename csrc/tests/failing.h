// What a function does when memory runs out, at each of its allocations in turn.
#pragma once

#include <new>
#include <string>

#include "tests/check.h"

namespace learnsolve::test {

// Calls f() with its first allocation failing, then its second, until all succeed: each call throws bad_alloc
// or, where it can do without (std::stable_sort), returns what f() returns undisturbed. AddressSanitizer sees
// memory that a failed call has lost.
template <class F>
void require_survival(const std::string& what, const F& f) {
  const auto expected = f();
  for (int64_t k = 0;; ++k) {
    allocations_left = k;
    try {
      const auto found = f();
      const bool all = allocations_left >= 0;
      allocations_left = -1;
      require(found == expected, what + ": another result after allocation " + std::to_string(k) + " failed");
      require(k > 0 || !all, what + ": nothing is allocated");
      if (all) return;
    } catch (const std::bad_alloc&) {
      allocations_left = -1;
    }
  }
}

}  // namespace learnsolve::test
