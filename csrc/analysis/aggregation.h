// One level of smoothed aggregation: nodes with a strong connection are joined to aggregates, candidates of
// the near null space are cut into them, and one step of Jacobi's method smooths the result.
//
// Source: P. Vanek, J. Mandel, M. Brezina, "Algebraic multigrid by smoothed aggregation for second and fourth
// order elliptic problems", Computing 56 (1996), section 5.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "analysis/interrupt.h"
#include "analysis/spgemm.h"

namespace learnsolve::analysis {

// A matrix whose rows are the nodes of a graph. i and j are strongly connected if
// a_ij^2 >= theta^2 |a_ii a_jj| and a_ij is not zero.
template <class I>
struct Graph {
  const I* ptr;
  const I* idx;
  const double* values;
  int64_t n;

  template <class F>  // f(j) for each strong neighbor, until it returns false
  void each_strong(int64_t i, double theta2, const double* diagonal, const F& f) const {
    for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p) {
      const int64_t j = idx[p];
      const double a = values[p];
      if (j == i || a == 0) continue;
      if (theta2 > 0 && a * a < theta2 * std::fabs(diagonal[i] * diagonal[j])) continue;
      if (!f(j)) return;
    }
  }
};

// Blocks of `size` rows become nodes; an entry is the Frobenius norm of a block.
template <class I>
struct Condensed {
  std::vector<I> ptr{0}, idx;
  std::vector<double> values;

  Condensed(const Graph<I>& A, int64_t size) {
    const int64_t nodes = A.n / size;
    std::vector<int64_t> place(nodes, -1);
    Pulse pulse;
    for (int64_t node = 0; node < nodes; ++node) {
      const int64_t begin = static_cast<int64_t>(idx.size());
      pulse(A.ptr[(node + 1) * size] - A.ptr[node * size] + 1);
      for (int64_t p = A.ptr[node * size]; p < A.ptr[(node + 1) * size]; ++p) {
        const int64_t j = A.idx[p] / size;
        if (place[j] < begin) {
          place[j] = static_cast<int64_t>(idx.size());
          idx.push_back(static_cast<I>(j)), values.push_back(0);
        }
        values[place[j]] = std::hypot(values[place[j]], A.values[p]);
      }
      ptr.push_back(static_cast<I>(idx.size()));
    }
  }
  Graph<I> graph() const {
    return {ptr.data(), idx.data(), values.data(), static_cast<int64_t>(ptr.size()) - 1};
  }
};

// The aggregate of each node, -1 for one without a strong neighbor. Returns their number. First, in order,
// nodes whose strong neighbors are all free, with these; then the others join one of those next to them; what
// remains makes aggregates of its own.
template <class I>
int64_t aggregate(const Graph<I>& A, double theta, I* of) {
  constexpr I kFree = -2, kAlone = -1;
  const double theta2 = theta * theta;
  std::vector<double> diagonal(theta > 0 ? A.n : 0, 0.0);
  Pulse pulse;
  if (theta > 0)
    for (int64_t i = 0; i < A.n; ++i)
      for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p)
        if (A.idx[p] == i) diagonal[i] = A.values[p];
  const auto each = [&](int64_t i, const auto& f) {
    pulse(A.ptr[i + 1] - A.ptr[i] + 1);
    A.each_strong(i, theta2, diagonal.data(), f);
  };
  std::fill(of, of + A.n, kFree);
  I count = 0;
  for (int64_t i = 0; i < A.n; ++i) {
    if (of[i] != kFree) continue;
    bool alone = true, open = true;
    each(i, [&](int64_t j) { return alone = false, open = of[j] == kFree; });
    if (alone) of[i] = kAlone;
    if (alone || !open) continue;
    of[i] = count;
    each(i, [&](int64_t j) { return of[j] = count, true; });
    ++count;
  }
  std::vector<std::pair<int64_t, I>> joined;
  for (int64_t i = 0; i < A.n; ++i)
    if (of[i] == kFree)
      each(i, [&](int64_t j) {
        if (of[j] < 0) return true;
        joined.emplace_back(i, of[j]);
        return false;
      });
  for (const auto& [i, a] : joined) of[i] = a;
  for (int64_t i = 0; i < A.n; ++i) {
    if (of[i] != kFree) continue;
    of[i] = count;
    each(i, [&](int64_t j) {
      if (of[j] == kFree) of[j] = count;
      return true;
    });
    ++count;
  }
  return count;
}

// Candidates, rows x k, are made orthonormal within each aggregate of nodes of `size` rows, in place;
// `coarse`, (count k) x k, gets what they are in this basis. What depends on those before becomes zero.
template <class I>
void orthonormalize(const I* of, int64_t rows, int64_t size, int64_t count, int64_t k, double* candidates,
                    double* coarse) {
  std::vector<double> sums(count), before(count);
  Pulse pulse;
  const auto dots = [&](int64_t c, int64_t d, std::vector<double>& out) {
    std::fill(out.begin(), out.end(), 0.0);
    for (int64_t i = 0; i < rows; ++i) {
      const I a = of[size == 1 ? i : i / size];
      if (a >= 0) out[a] += candidates[i * k + c] * candidates[i * k + d];
    }
    pulse(rows);
  };
  std::fill(coarse, coarse + count * k * k, 0.0);
  for (int64_t c = 0; c < k; ++c) {
    if (c > 0) dots(c, c, before);
    for (int64_t d = 0; d < c; ++d) {
      dots(c, d, sums);
      for (int64_t i = 0; i < rows; ++i) {
        const I a = of[i / size];
        if (a >= 0) candidates[i * k + c] -= sums[a] * candidates[i * k + d];
      }
      for (int64_t a = 0; a < count; ++a) coarse[(a * k + d) * k + c] = sums[a];
    }
    dots(c, c, sums);
    for (int64_t a = 0; a < count; ++a) {
      const bool zero = !(sums[a] > (c > 0 ? 1e-20 * before[a] : 0.0));
      const double norm = zero ? 0 : std::sqrt(sums[a]);
      coarse[(a * k + c) * k + c] = norm;
      sums[a] = zero ? 0 : 1 / norm;
    }
    for (int64_t i = 0; i < rows; ++i) {
      const I a = of[size == 1 ? i : i / size];
      candidates[i * k + c] *= a >= 0 ? sums[a] : 0;
    }
  }
}

template <class I>
struct Interpolation {
  std::vector<I> ptr, idx;
  std::vector<double> values;
};

// P = (I - omega D^-1 A) T, on the pattern of the product: T has the orthonormal candidates t, rows x k.
template <class I>
Interpolation<I> smoothed_prolongation(const Graph<I>& A, const I* of, int64_t size, int64_t count, int64_t k,
                                       const double* t, double omega) {
  Interpolation<I> P;
  P.ptr.resize(A.n + 1);
  std::vector<int64_t> place(count, -1);  // of the aggregate among those of this row, if it is not before it
  std::vector<I> row;
  std::vector<double> sums;
  ColumnSorter sort(count);
  Pulse pulse;
  int64_t met = 0, end = 0;  // aggregates and entries of earlier rows
  for (int64_t i = 0; i < A.n; ++i) {
    const int64_t length = A.ptr[i + 1] - A.ptr[i];
    pulse(length * k + 1);
    if (static_cast<int64_t>(row.size()) < length) row.resize(length), sums.resize(length * k);
    double diagonal = 0;
    int64_t found = 0;
    bool sorted = true;
    for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p) {
      const int64_t j = A.idx[p];
      const double a = A.values[p];
      if (j == i) diagonal = a;
      const I to = of[size == 1 ? j : j / size];
      if (to < 0) continue;
      if (place[to] < met) {
        sorted &= found == 0 || row[found - 1] < to;
        place[to] = met + found;
        std::fill_n(&sums[found * k], k, 0.0);
        row[found++] = to;
      }
      double* const sum = &sums[(place[to] - met) * k];
      for (int64_t c = 0; c < k; ++c) sum[c] += a * t[j * k + c];
    }
    if (!sorted) sort(row.data(), row.data() + found);
    if (static_cast<int64_t>(P.idx.size()) < end + found * k) {
      const int64_t more = std::max(end + end / 2, A.n * 3 * k) + found * k;
      P.idx.resize(more), P.values.resize(more);
    }
    const I own = of[size == 1 ? i : i / size];
    const double scale = -omega / diagonal;
    for (int64_t f = 0; f < found; ++f) {
      const double* const sum = &sums[(place[row[f]] - met) * k];
      for (int64_t c = 0; c < k; ++c, ++end) {
        P.idx[end] = static_cast<I>(row[f] * k + c);
        P.values[end] = scale * sum[c] + (row[f] == own ? t[i * k + c] : 0);
      }
    }
    met += found;
    P.ptr[i + 1] = static_cast<I>(end);
  }
  P.idx.resize(end), P.values.resize(end);
  return P;
}

}  // namespace learnsolve::analysis
