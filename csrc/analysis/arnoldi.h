// Krylov spaces of D^-1 A, for estimates of its spectral radius.
//
// Source: Y. Saad, "Numerical Methods for Large Eigenvalue Problems" (2011), sections 6.2 and 6.3.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "analysis/aggregation.h"
#include "analysis/interrupt.h"

namespace learnsolve::analysis {

// Hessenberg matrix, (steps + 1) x steps by rows, of Arnoldi's method for D^-1 A; with `symmetric` of Lanczos'
// in the inner product of D: one number more on each side of the diagonal. Returns the steps that were made,
// fewer if the space is invariant. v: the start, n numbers. bound: the largest sum of magnitudes in a row of
// D^-1 A, which no eigenvalue exceeds.
template <class I>
int64_t arnoldi(const Graph<I>& A, const double* d, int64_t steps, bool symmetric, const double* v, double* H,
                double* bound) {
  const int64_t n = A.n, kept = symmetric ? 2 : steps + 1;
  std::vector<std::vector<double>> basis(kept, std::vector<double>(n));
  Pulse pulse;
  const auto dot = [&](const std::vector<double>& x, const std::vector<double>& y) {
    double sum[4] = {0, 0, 0, 0};
    for (int64_t i = 0; i < n; ++i) sum[i & 3] += x[i] * y[i] * (symmetric ? d[i] : 1.0);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
  };
  *bound = 0;
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p) sum += std::fabs(A.values[p]);
    *bound = std::max(*bound, sum / std::fabs(d[i]));
  }
  std::copy(v, v + n, basis[0].begin());
  const double start = std::sqrt(dot(basis[0], basis[0]));
  for (double& x : basis[0]) x /= start;
  std::fill(H, H + (steps + 1) * steps, 0.0);
  std::vector<double> w(n);
  double largest = 0;
  for (int64_t k = 0; k < steps; ++k) {
    const std::vector<double>& q = basis[k % kept];
    for (int64_t i = 0; i < n; ++i) {
      double s = 0;
      for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p) s += A.values[p] * q[A.idx[p]];
      w[i] = s / d[i];
    }
    pulse(A.ptr[n] + n);
    for (int64_t j = symmetric ? std::max<int64_t>(0, k - 1) : 0; j <= k; ++j) {
      const std::vector<double>& u = basis[j % kept];
      const double h = dot(u, w);
      H[j * steps + k] = h;
      largest = std::max(largest, std::fabs(h));
      for (int64_t i = 0; i < n; ++i) w[i] -= h * u[i];
    }
    const double norm = std::sqrt(dot(w, w));
    H[(k + 1) * steps + k] = norm;
    if (!(norm > 1e-12 * largest) || k + 1 == steps) return k + 1;
    std::vector<double>& next = basis[(k + 1) % kept];
    for (int64_t i = 0; i < n; ++i) next[i] = w[i] / norm;
  }
  return steps;
}

}  // namespace learnsolve::analysis
