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

// The largest sum of magnitudes in a row of D^-1 A: no eigenvalue exceeds it.
template <class I>
double largest_row_sum(const Graph<I>& A, const double* d) {
  double largest = 0;
  Pulse pulse;
  for (int64_t i = 0; i < A.n; ++i) {
    double sum = 0;
    pulse(A.ptr[i + 1] - A.ptr[i] + 1);
    for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p) sum += std::fabs(A.values[p]);
    largest = std::max(largest, sum / std::fabs(d[i]));
  }
  return largest;
}

// y = D^-1 A x. Returns x^T A x.
template <class I>
double scaled_product(const Graph<I>& A, const double* d, const double* x, double* y) {
  double energy = 0;
  Pulse pulse;
  for (int64_t i = 0; i < A.n; ++i) {
    double s = 0;
    pulse(A.ptr[i + 1] - A.ptr[i] + 1);
    for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p) s += A.values[p] * x[A.idx[p]];
    energy += x[i] * s;
    y[i] = s / d[i];
  }
  return energy;
}

// A start without a pattern: the fractional parts of multiples of the golden ratio.
inline std::vector<double> start(int64_t n) {
  std::vector<double> v(n);
  double x = 0;
  for (double& value : v) {
    x += 0.6180339887498949;
    value = x -= x >= 1;
  }
  return v;
}

// Hessenberg matrix, (steps + 1) x steps by rows, of Arnoldi's method for D^-1 A; returns the steps that were
// made, fewer if the space is invariant.
template <class I>
int64_t arnoldi(const Graph<I>& A, const double* d, int64_t steps, double* H) {
  const int64_t n = A.n;
  std::vector<std::vector<double>> basis(steps + 1, std::vector<double>(n));
  const auto dot = [&](const std::vector<double>& x, const std::vector<double>& y) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
    return sum;
  };
  std::fill(H, H + (steps + 1) * steps, 0.0);
  basis[0] = start(n);
  double norm = std::sqrt(dot(basis[0], basis[0])), largest = 0;
  Pulse pulse;
  for (int64_t k = 0; k < steps; ++k) {
    for (double& x : basis[k]) x /= norm;
    std::vector<double>& w = basis[k + 1];
    scaled_product(A, d, basis[k].data(), w.data());
    for (int64_t j = 0; j <= k; ++j) {
      const double h = H[j * steps + k] = dot(basis[j], w);
      largest = std::max(largest, std::fabs(h));
      for (int64_t i = 0; i < n; ++i) w[i] -= h * basis[j][i];
      pulse(2 * n);
    }
    norm = H[(k + 1) * steps + k] = std::sqrt(dot(w, w));
    if (!(norm > 1e-12 * largest)) return k + 1;
  }
  return steps;
}

// The same for a symmetric A and a positive D, in the inner product of D: tridiagonal.
template <class I>
int64_t lanczos(const Graph<I>& A, const double* d, int64_t steps, double* H) {
  const int64_t n = A.n;
  std::vector<double> q = start(n), before(n, 0.0), w(n);
  std::fill(H, H + (steps + 1) * steps, 0.0);
  double norm = 0, largest = 0;
  for (int64_t i = 0; i < n; ++i) norm += q[i] * q[i] * d[i];
  for (double& x : q) x /= std::sqrt(norm);
  norm = 0;
  for (int64_t k = 0; k < steps; ++k) {
    const double alpha = scaled_product(A, d, q.data(), w.data());
    double square = 0;
    for (int64_t i = 0; i < n; ++i) {
      w[i] -= alpha * q[i] + norm * before[i];
      square += w[i] * w[i] * d[i];
    }
    H[k * steps + k] = alpha;
    if (k > 0) H[(k - 1) * steps + k] = norm;
    norm = H[(k + 1) * steps + k] = std::sqrt(square);
    largest = std::max({largest, std::fabs(alpha), norm});
    if (!(norm > 1e-12 * largest)) return k + 1;
    for (double& x : w) x /= norm;
    std::swap(before, q), std::swap(q, w);
  }
  return steps;
}

}  // namespace learnsolve::analysis
