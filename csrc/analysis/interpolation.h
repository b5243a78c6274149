// Interpolation of classical multigrid: fine points from coarse ones.
//
// Source: J. W. Ruge, K. Stueben, "Algebraic multigrid" (1987), section 4.5 (classical); H. De Sterck, R. D.
// Falgout, J. W. Nolting, U. M. Yang, "Distance-two interpolation for parallel algebraic multigrid", Numer.
// Linear Algebra Appl. 15 (2008), doi:10.1002/nla.559, equation 4.10 (extended+i); K. Stueben, in U.
// Trottenberg et al., "Multigrid" (2001), A.7.3 (multipass).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "analysis/aggregation.h"
#include "analysis/interrupt.h"

namespace learnsolve::analysis {

// Collects rows of P: f(i, row) for fine points, rows of coarse ones have a single one.
template <class I, class F>
Interpolation<I> interpolate(int64_t n, const uint8_t* coarse, const F& f) {
  Interpolation<I> P;
  std::vector<I> number(n);
  I count = 0;
  for (int64_t i = 0; i < n; ++i) number[i] = coarse[i] ? count++ : I(-1);
  P.ptr.reserve(n + 1), P.ptr.push_back(0);
  P.idx.reserve(3 * n), P.values.reserve(3 * n);
  std::vector<std::pair<I, double>> row;
  for (int64_t i = 0; i < n; ++i) {
    row.clear();
    if (coarse[i])
      row.emplace_back(static_cast<I>(i), 1.0);
    else
      f(i, row);
    for (const auto& [j, weight] : row) P.idx.push_back(number[j]), P.values.push_back(weight);
    P.ptr.push_back(static_cast<I>(P.idx.size()));
  }
  return P;
}

// With the strong connections of i to coarse points, C, and to fine ones with a point of C as strong
// neighbor, F; a^-: zero where the sign is that of the diagonal:
//
//   p_ij = -(a_ij + sum_{k in F} a_ik a^-_kj / sum_{l in C} a^-_kl) / sum_{m not in C, F} a_im
template <class I>
Interpolation<I> classical_interpolation(const Graph<I>& A, const double* diagonal, const uint8_t* strong,
                                         const uint8_t* coarse) {
  std::vector<I> place(A.n, I(-1)), of(A.n, I(-1));  // in the row, of a point of C of fine point of[j]
  Pulse pulse;
  return interpolate<I>(A.n, coarse, [&](int64_t i, auto& row) {
    for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p)
      if (const I j = A.idx[p]; strong[p] && coarse[j]) {
        of[j] = static_cast<I>(i), place[j] = static_cast<I>(row.size());
        row.emplace_back(j, A.values[p]);
      }
    double rest = 0;
    for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p) {
      const int64_t k = A.idx[p];
      if (strong[p] && coarse[k]) continue;
      bool common = false;
      double sum = 0;
      if (strong[p]) {
        pulse(2 * (A.ptr[k + 1] - A.ptr[k]) + 1);
        for (int64_t q = A.ptr[k]; q < A.ptr[k + 1]; ++q)
          if (of[A.idx[q]] == i) {
            common |= strong[q] != 0;
            if (A.values[q] * diagonal[k] < 0) sum += A.values[q];
          }
      }
      if (!common) {
        rest += A.values[p];
        continue;
      }
      if (!(std::fabs(sum) > 1e-15 * std::fabs(A.values[p]))) continue;
      const double share = A.values[p] / sum;
      for (int64_t q = A.ptr[k]; q < A.ptr[k + 1]; ++q)
        if (const I j = A.idx[q]; of[j] == i && A.values[q] * diagonal[k] < 0)
          row[place[j]].second += share * A.values[q];
    }
    if (rest == 0) row.clear();  // nothing to divide by: no correction here
    for (auto& [j, weight] : row) weight /= -rest;
  });
}

// With the strong coarse neighbors of i and of its strong fine neighbors F, C; row sums of C and i:
//
//   p_ij = -(a_ij + sum_{k in F} a_ik a^-_kj / s_k) / (a_ii + sum_{m weak, not in C} a_im
//          + sum_{k in F} a_ik a^-_ki / s_k),             s_k = sum_{l in C or l = i} a^-_kl
//
// The `most` largest weights of a row are kept, scaled so that their sum stays.
template <class I>
Interpolation<I> extended_interpolation(const Graph<I>& A, const double* diagonal, const uint8_t* strong,
                                        const uint8_t* coarse, int64_t most) {
  std::vector<I> place(A.n, I(-1)), of(A.n, I(-1));
  Pulse pulse;
  return interpolate<I>(A.n, coarse, [&](int64_t i, auto& row) {
    const auto reach = [&](I j) {
      if (of[j] == i) return;
      of[j] = static_cast<I>(i), place[j] = static_cast<I>(row.size());
      row.emplace_back(j, 0.0);
    };
    for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p) {
      const int64_t k = A.idx[p];
      if (!strong[p]) continue;
      if (coarse[k])
        reach(A.idx[p]);
      else
        for (int64_t q = A.ptr[k]; q < A.ptr[k + 1]; ++q)
          if (strong[q] && coarse[A.idx[q]]) reach(A.idx[q]);
    }
    double rest = 0;
    for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p) {
      const int64_t k = A.idx[p];
      const double a = A.values[p];
      if (of[k] == i)
        row[place[k]].second += a;
      else if (!strong[p])
        rest += a;
      else {
        pulse(2 * (A.ptr[k + 1] - A.ptr[k]) + 1);
        double sum = 0;
        const auto counts = [&](int64_t q) {
          return (of[A.idx[q]] == i || A.idx[q] == i) && A.values[q] * diagonal[k] < 0;
        };
        for (int64_t q = A.ptr[k]; q < A.ptr[k + 1]; ++q)
          if (counts(q)) sum += A.values[q];
        if (sum == 0) {
          rest += a;
          continue;
        }
        for (int64_t q = A.ptr[k]; q < A.ptr[k + 1]; ++q)
          if (counts(q)) (A.idx[q] == i ? rest : row[place[A.idx[q]]].second) += a * A.values[q] / sum;
      }
    }
    if (rest == 0) row.clear();
    double all = 0, left = 0;
    for (auto& [j, weight] : row) all += weight /= -rest;
    if (static_cast<int64_t>(row.size()) > most) {
      std::nth_element(row.begin(), row.begin() + most, row.end(), [](const auto& x, const auto& y) {
        const double a = std::fabs(x.second), b = std::fabs(y.second);
        return a != b ? a > b : x.first < y.first;
      });
      row.resize(most);
      for (const auto& [j, weight] : row) left += weight;
      if (left != 0)
        for (auto& [j, weight] : row) weight *= all / left;
    }
    std::sort(row.begin(), row.end());
  });
}

// From coarse points at any distance, pass after pass: with the strong neighbors K of i that an earlier pass
// has interpolated (the coarse points at first), row i of P is
//
//   p_i = -(sum_{m != i} a_im / sum_{k in K} a_ik) / a_ii * sum_{k in K} a_ik p_k
template <class I>
Interpolation<I> multipass_interpolation(const Graph<I>& A, const double* diagonal, const uint8_t* strong,
                                         const uint8_t* coarse) {
  std::vector<int32_t> pass(A.n, -1);
  std::vector<int64_t> begin(A.n, 0), end(A.n, 0);
  std::vector<I> columns;  // of rows, in the order in which they are made
  std::vector<double> weights;
  for (int64_t i = 0; i < A.n; ++i)
    if (coarse[i]) {
      pass[i] = 0, begin[i] = static_cast<int64_t>(columns.size()), end[i] = begin[i] + 1;
      columns.push_back(static_cast<I>(columns.size())), weights.push_back(1);
    }
  std::vector<int64_t> of(columns.size(), -1), place(columns.size());
  std::vector<std::pair<I, double>> row;
  Pulse pulse;
  bool more = true;
  for (int32_t now = 1; more; ++now) {
    more = false;
    for (int64_t i = 0; i < A.n; ++i) {
      if (pass[i] >= 0) continue;
      double all = 0, known = 0, size = 0;
      row.clear();
      pulse(A.ptr[i + 1] - A.ptr[i] + 1);
      for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p) {
        const int64_t k = A.idx[p];
        const double a = A.values[p];
        if (k == i) continue;
        all += a;
        if (!strong[p] || pass[k] < 0 || pass[k] == now) continue;
        pass[i] = now, known += a, size += std::fabs(a);
        pulse(end[k] - begin[k]);
        for (int64_t q = begin[k]; q < end[k]; ++q) {
          const I j = columns[q];
          if (of[j] != i) of[j] = i, place[j] = static_cast<int64_t>(row.size()), row.emplace_back(j, 0.0);
          row[place[j]].second += a * weights[q];
        }
      }
      if (pass[i] < 0) continue;
      more = true;
      if (std::fabs(known) <= 1e-12 * size) row.clear();
      std::sort(row.begin(), row.end());
      begin[i] = static_cast<int64_t>(columns.size());
      for (const auto& [j, weight] : row)
        columns.push_back(j), weights.push_back(-all / known / diagonal[i] * weight);
      end[i] = static_cast<int64_t>(columns.size());
    }
  }
  Interpolation<I> P;
  P.ptr.reserve(A.n + 1), P.ptr.push_back(0);
  P.idx.reserve(columns.size()), P.values.reserve(columns.size());
  for (int64_t i = 0; i < A.n; ++i) {
    P.idx.insert(P.idx.end(), columns.begin() + begin[i], columns.begin() + end[i]);
    P.values.insert(P.values.end(), weights.begin() + begin[i], weights.begin() + end[i]);
    P.ptr.push_back(static_cast<I>(P.idx.size()));
  }
  return P;
}

}  // namespace learnsolve::analysis
