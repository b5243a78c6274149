// The patterns of incomplete factors by a threshold, ICT and ILUT: numbers decide which entries are kept.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "analysis/fill_row.h"
#include "analysis/interrupt.h"

namespace learnsolve::analysis {

// The pattern, or the first row whose pivot breaks down.
struct Choice {
  std::vector<int64_t> ptr, idx;
  int64_t row = -1;
  double pivot = 0;
};

namespace detail {

// Of `columns` keeps those whose magnitudes are not below `least`, and of these the `most` largest, of equal
// ones the first; sorts them. What is not a number counts as largest: whoever uses it will find it.
template <class Value>
void keep_largest(std::vector<int64_t>& columns, const Value& value, double least, int64_t most) {
  std::erase_if(columns, [&](int64_t j) { return std::fabs(value(j)) < least; });
  if (static_cast<int64_t>(columns.size()) > most) {
    const auto size = [&](int64_t j) {
      const double m = std::fabs(value(j));
      return std::isnan(m) ? std::numeric_limits<double>::infinity() : m;
    };
    std::nth_element(columns.begin(), columns.begin() + most, columns.end(), [&](int64_t a, int64_t b) {
      const double x = size(a), y = size(b);
      return x != y ? x > y : a < b;
    });
    columns.resize(most);
  }
  std::sort(columns.begin(), columns.end());
}

}  // namespace detail

// L of A ~ L L^T, column by column. Of column j, the numbers w_i = a_ij - sum_k l_ik l_jk, i > j, k < j, over
// what was kept: those with |w_i| >= tolerance |a_j|_2 are kept, at most `fill` more than A has there, the
// largest first; then l_ij = w_i / sqrt(w_j). a_j is the column on and below the diagonal. Row j of (ptr,
// idx, values) is column j of A; what lies above the diagonal is not read.
inline Choice threshold_cholesky(const int64_t* ptr, int64_t n, const int64_t* idx, const double* values,
                                 int64_t fill, double tolerance) {
  Choice choice;
  std::vector<int64_t> first{0}, rows, size(n + 1, 1);  // columns below the diagonal; entries of each row
  std::vector<double> l;
  // Columns by the row of their next entry, that at at[k]: head[row], then after[column], to -1.
  std::vector<int64_t> head(n, -1), after(n, -1), at(n);
  const auto wait = [&](int64_t k) {
    if (at[k] == first[k + 1]) return;
    after[k] = head[rows[at[k]]], head[rows[at[k]]] = k;
  };
  FillRow<double> w(n);
  Pulse pulse;
  for (int64_t j = 0; j < n; ++j) {
    pulse(ptr[j + 1] - ptr[j] + 1);
    w.begin(j);
    w.insert(j, 0);
    double norm = 0;
    int64_t own = 0;
    for (int64_t p = ptr[j]; p < ptr[j + 1]; ++p) {
      if (idx[p] < j) continue;
      norm = std::hypot(norm, values[p]);
      if (idx[p] == j)
        w[j] = values[p];
      else
        w.insert(idx[p], values[p]), ++own;
    }
    for (int64_t k = head[j], next; k >= 0; k = next) {
      next = after[k];
      const double factor = l[at[k]];
      pulse(first[k + 1] - at[k]);
      for (int64_t q = at[k]; q < first[k + 1]; ++q) {
        if (!w.has(rows[q])) w.insert(rows[q], 0);
        w[rows[q]] -= factor * l[q];
      }
      ++at[k];
      wait(k);
    }
    const double pivot = w[j];
    if (!(pivot > 0) || std::isinf(pivot)) {
      choice.row = j, choice.pivot = pivot;
      return choice;
    }
    std::vector<int64_t>& below = w.right();
    detail::keep_largest(below, [&](int64_t i) { return w[i]; }, tolerance * norm, own + fill);
    const double root = std::sqrt(pivot);
    for (const int64_t i : below) rows.push_back(i), l.push_back(w[i] / root), ++size[i];
    first.push_back(static_cast<int64_t>(rows.size()));
    at[j] = first[j];
    wait(j);
    w.clear();
  }
  // By rows; the diagonal comes last, since the columns before it come first.
  choice.ptr.assign(n + 1, 0);
  for (int64_t i = 0; i < n; ++i) choice.ptr[i + 1] = choice.ptr[i] + size[i];
  choice.idx.resize(choice.ptr[n]);
  std::vector<int64_t> next(choice.ptr.begin(), choice.ptr.end() - 1);
  for (int64_t j = 0; j < n; ++j) {
    pulse(first[j + 1] - first[j] + 1);
    choice.idx[next[j]++] = j;
    for (int64_t q = first[j]; q < first[j + 1]; ++q) choice.idx[next[rows[q]]++] = j;
  }
  return choice;
}

// L and U of A ~ L U, row by row. An entry w_k = l_ik u_kk of L, or w_j = u_ij of U, is dropped when it is
// computed if it is below tolerance |a_i|_2. After the elimination of a row the largest of each part are
// kept, `fill` more than A has there; before, the others take part in it.
inline Choice threshold_lu(const int64_t* ptr, int64_t n, const int64_t* idx, const double* values,
                           int64_t fill, double tolerance) {
  Choice choice;
  choice.ptr.push_back(0);
  std::vector<int64_t> first{0}, columns, left;  // U right of the diagonal; what a row of L keeps
  std::vector<double> u, pivots;
  FillRow<double> w(n);
  Pulse pulse;
  for (int64_t i = 0; i < n; ++i) {
    pulse(ptr[i + 1] - ptr[i] + 1);
    w.begin(i);
    w.insert(i, 0);
    double norm = 0;
    int64_t own_left = 0, own_right = 0;
    for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p) {
      norm = std::hypot(norm, values[p]);
      if (idx[p] == i)
        w[i] = values[p];
      else
        w.insert(idx[p], values[p]), ++(idx[p] < i ? own_left : own_right);
    }
    const double least = tolerance * norm;
    left.clear();
    for (int64_t k = w.next(); k >= 0; k = w.next()) {
      if (std::fabs(w[k]) < least) continue;
      left.push_back(k);
      const double factor = w[k] / pivots[k];
      pulse(first[k + 1] - first[k] + 1);
      for (int64_t q = first[k]; q < first[k + 1]; ++q) {
        if (!w.has(columns[q])) w.insert(columns[q], 0);
        w[columns[q]] -= factor * u[q];
      }
    }
    const double pivot = w[i];
    if (pivot == 0 || !std::isfinite(pivot)) {
      choice.row = i, choice.pivot = pivot;
      return choice;
    }
    pivots.push_back(pivot);
    const auto value = [&](int64_t j) { return w[j]; };
    detail::keep_largest(left, value, least, own_left + fill);
    detail::keep_largest(w.right(), value, least, own_right + fill);
    choice.idx.insert(choice.idx.end(), left.begin(), left.end());
    choice.idx.push_back(i);
    choice.idx.insert(choice.idx.end(), w.right().begin(), w.right().end());
    choice.ptr.push_back(static_cast<int64_t>(choice.idx.size()));
    for (const int64_t j : w.right()) columns.push_back(j), u.push_back(w[j]);
    first.push_back(static_cast<int64_t>(columns.size()));
    w.clear();
  }
  return choice;
}

}  // namespace learnsolve::analysis
