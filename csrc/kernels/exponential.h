#pragma once

#include "kernels/vectors.h"

namespace learnsolve::LEARNSOLVE_ISA {

// exp(x) in vectors.
//
// x = n log 2 + r with |r| <= log(2) / 2, and exp(x) = 2^n exp(r), exp(r) by its Taylor polynomial. Its
// remainder is below a tenth of a unit roundoff: 4e-18 in float64 (degree 13), 6e-9 in float32 (degree 7).
// log 2 is subtracted in two parts, the first with so few digits that n times it is exact (Cody and Waite,
// Software Manual for the Elementary Functions, 1980). Adding and subtracting 1.5 2^52 (2^23) rounds to an
// integer, which then stands in the last bits of the sum. The polynomial is that of 2 exp(r), for 2^(n - 1)
// has an exponent where 2^n has none. Results below 2^-1021 (2^-125) are zero.

template <class T>
struct ExpConstants;
template <>
struct ExpConstants<double> {
  static constexpr double kRound = 0x1.8p52, kLog2High = 0x1.62e42feep-1, kLog2Low = 0x1.a39ef35793c76p-33,
                          kLowest = -708, kHighest = 710;
  static constexpr int kMantissa = 52, kBias = 1022, kDegree = 13;
};
template <>
struct ExpConstants<float> {
  static constexpr float kRound = 0x1.8p23f, kLog2High = 0x1.63p-1f, kLog2Low = -0x1.bd0106p-13f,
                         kLowest = -86.7f, kHighest = 89;
  static constexpr int kMantissa = 23, kBias = 126, kDegree = 7;
};

// 2 / k!
template <class T>
constexpr T coefficient(int k) {
  double f = 1;
  for (int i = 2; i <= k; ++i) f *= i;
  return static_cast<T>(2 / f);
}

template <class T>
LS_INLINE typename Wide<T>::type exponential(typename Wide<T>::type given) {
  using C = ExpConstants<T>;
  using W = typename Wide<T>::type;
  using M = typename Lanes<T>::mask;
  const W x = given > C::kHighest ? W{} + C::kHighest : given,  // NaN is not above, and below not below
      shifted = x * T(1.4426950408889634074) + C::kRound, n = shifted - C::kRound,
          r = (x - n * C::kLog2High) - n * C::kLog2Low;
  W p = W{} + coefficient<T>(C::kDegree);
#pragma GCC unroll 16
  for (int d = C::kDegree - 1; d >= 0; --d) p = p * r + coefficient<T>(d);
  const W power = reinterpret_cast<W>((reinterpret_cast<M>(shifted) + C::kBias) << C::kMantissa);
  return x < C::kLowest ? W{} : p * power;
}

}  // namespace learnsolve::LEARNSOLVE_ISA
