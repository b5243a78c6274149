// Arrays of exact size, and comparison under a justified bound.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/registry.h"

namespace learnsolve::test {

using Random = std::mt19937_64;

[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::exit(1);
}
inline void require(bool holds, const std::string& what) {
  if (!holds) fail(what);
}

// n elements that end where their allocation ends: AddressSanitizer sees a read of one more. The first is
// one element off the allocation's beginning, so that nothing is aligned better than its type demands.
template <class T>
class Array {
 public:
  explicit Array(int64_t n = 0) : storage_(n + 1) {}
  Array(const std::vector<T>& v) : Array(static_cast<int64_t>(v.size())) {
    for (int64_t i = 0; i < size(); ++i) (*this)[i] = v[i];
  }
  T* data() { return storage_.data() + 1; }
  const T* data() const { return storage_.data() + 1; }
  T& operator[](int64_t i) { return data()[i]; }
  const T& operator[](int64_t i) const { return data()[i]; }
  int64_t size() const { return static_cast<int64_t>(storage_.size()) - 1; }

 private:
  std::vector<T> storage_;
};

template <class T>
Array<T> uniform(Random& random, int64_t n) {
  Array<T> a(n);
  std::uniform_real_distribution<T> draw(-1, 1);
  for (int64_t i = 0; i < n; ++i) a[i] = draw(random);
  return a;
}

// A sum computed plainly in long double, with the sum of its terms' magnitudes and their number.
struct Sum {
  long double value = 0, magnitude = 0;
  int64_t roundings = 0;
  void add(long double a, long double b = 1) {
    value += a * b;
    magnitude += std::fabs(a * b);
    ++roundings;
  }
};

// out[0], out[1] += the product of two complex numbers, Re and Im.
template <class T>
void add_product(Sum* out, const T* a, const T* b) {
  out[0].add(a[0], b[0]), out[0].add(-a[1], b[1]);
  out[1].add(a[0], b[1]), out[1].add(a[1], b[0]);
}

// Any order of summation, with or without fused multiply-adds, errs by at most gamma_n sum |terms| with
// gamma_n = n u / (1 - n u) (Higham, Accuracy and Stability of Numerical Algorithms, 2002, sections 3.1
// and 4.2). n counts one rounding for each product and each addition.
template <class T>
long double error_bound(const Sum& s) {
  const long double nu = (s.roundings + 1) * std::numeric_limits<T>::epsilon() / 2.0L;
  return nu / (1 - nu) * s.magnitude;
}

// Place of the first entry that is off by more than its bound (NaN is off), or -1.
template <class T>
int64_t first_wrong(const Array<T>& actual, const std::vector<Sum>& expected) {
  require(actual.size() == static_cast<int64_t>(expected.size()), "comparison of unequal lengths");
  for (int64_t i = 0; i < actual.size(); ++i)
    if (!(std::fabs(actual[i] - expected[i].value) <= error_bound<T>(expected[i]))) return i;
  return -1;
}

template <class T>
void require_close(const Array<T>& actual, const std::vector<Sum>& expected, const std::string& what) {
  const int64_t i = first_wrong(actual, expected);
  if (i < 0) return;
  fail(what + ": entry " + std::to_string(i) + " is " + std::to_string(actual[i]) + ", not " +
       std::to_string(static_cast<double>(expected[i].value)) + " +- " +
       std::to_string(static_cast<double>(error_bound<T>(expected[i]))));
}

template <class T>
void require_same_bits(const Array<T>& a, const Array<T>& b, const std::string& what) {
  require(a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0,
          what + ": another partition of the blocks gives other bits");
}

}  // namespace learnsolve::test
