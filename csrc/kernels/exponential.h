// exp(x) for x <= 0, in vectors: what a softmax takes of differences to a maximum.
//
// x = n log 2 + r with |r| <= log(2) / 2, and exp(x) = 2^n exp(r), exp(r) by its Taylor polynomial. Its
// remainder is below a tenth of a unit roundoff: 4e-18 in float64 (degree 13), 6e-9 in float32 (degree 7).
// log 2 is subtracted in two parts, the first with so few digits that n times it is exact (Cody and Waite,
// Software Manual for the Elementary Functions, 1980). Adding and subtracting 1.5 2^52 (2^23) rounds to an
// integer, which then stands in the last bits of the sum. Results below 2^-1021 (2^-125) are zero.
#pragma once

#include "kernels/vector_pass.h"

namespace learnsolve::LEARNSOLVE_ISA {

template <class T>
struct ExpConstants;
template <>
struct ExpConstants<double> {
  static constexpr double kRound = 0x1.8p52, kLog2High = 0x1.62e42feep-1, kLog2Low = 0x1.a39ef35793c76p-33,
                          kLowest = -708;
  static constexpr int kMantissa = 52, kBias = 1023, kDegree = 13;
};
template <>
struct ExpConstants<float> {
  static constexpr float kRound = 0x1.8p23f, kLog2High = 0x1.63p-1f, kLog2Low = -0x1.bd0106p-13f,
                         kLowest = -87;
  static constexpr int kMantissa = 23, kBias = 127, kDegree = 7;
};

// 1 / k!
template <class T>
constexpr T inverse_factorial(int k) {
  double f = 1;
  for (int i = 2; i <= k; ++i) f *= i;
  return static_cast<T>(1 / f);
}

template <class T>
LS_INLINE typename Wide<T>::type exp_nonpositive(typename Wide<T>::type x) {
  using C = ExpConstants<T>;
  using W = typename Wide<T>::type;
  using M = typename Lanes<T>::mask;
  const W shifted = x * T(1.4426950408889634074) + C::kRound, n = shifted - C::kRound,
          r = (x - n * C::kLog2High) - n * C::kLog2Low;
  W p = W{} + inverse_factorial<T>(C::kDegree);
#pragma GCC unroll 16
  for (int d = C::kDegree - 1; d >= 0; --d) p = p * r + inverse_factorial<T>(d);
  const W power = reinterpret_cast<W>((reinterpret_cast<M>(shifted) + C::kBias) << C::kMantissa);
  return x < C::kLowest ? W{} : p * power;  // NaN is not below
}

}  // namespace learnsolve::LEARNSOLVE_ISA
