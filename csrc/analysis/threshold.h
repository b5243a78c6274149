// The patterns of incomplete factors by a threshold, ICT and ILUT: numbers decide which entries are kept.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "analysis/fill_row.h"
#include "analysis/growing.h"
#include "analysis/interrupt.h"

namespace learnsolve::analysis {

// The pattern, or the first row whose pivot breaks down.
struct Choice {
  std::vector<int64_t> ptr;
  Growing<int64_t> idx;  // ptr.back() of them
  int64_t row = -1;
  double pivot = 0;
};

namespace detail {

struct Magnitude {
  double size;
  int64_t column;
  bool before(const Magnitude& other) const {
    return size != other.size ? size > other.size : column < other.column;
  }
};

// Of `columns` keeps those whose magnitudes are not below `least`, and of these the `most` largest, of equal
// ones the first. What is not a number counts as largest: whoever uses it will find it. `sizes` is room.
template <class Value>
void keep_largest(std::vector<int64_t>& columns, const Value& value, double least, int64_t most,
                  std::vector<Magnitude>& sizes) {
  sizes.clear();
  size_t kept = 0;
  for (const int64_t j : columns) {
    const double size = std::fabs(value(j));
    if (size < least) continue;
    sizes.push_back({std::isnan(size) ? std::numeric_limits<double>::infinity() : size, j});
    columns[kept++] = j;
  }
  columns.resize(kept);
  if (static_cast<int64_t>(kept) <= most) return;
  if (most == 0) return columns.clear();
  const auto before = [](const Magnitude& a, const Magnitude& b) { return a.before(b); };
  std::nth_element(sizes.begin(), sizes.begin() + most - 1, sizes.end(), before);
  const Magnitude last = sizes[most - 1];
  std::erase_if(columns, [&](int64_t j) {
    const double size = std::fabs(value(j));
    return last.before({std::isnan(size) ? std::numeric_limits<double>::infinity() : size, j});
  });
}

// Entries that one part of a factor is given memory for at first: all that it may have, or many. Growing
// costs: pages are mapped again.
inline int64_t expected_entries(int64_t entries, int64_t n, int64_t fill) {
  return std::min(entries + n * fill, int64_t{1} << 24);
}

// The norm of the values f(p), begin <= p < end.
template <class F>
double norm(int64_t begin, int64_t end, const F& f) {
  double sum = 0, norm = 0;
  for (int64_t p = begin; p < end; ++p) sum += f(p) * f(p);
  if (sum > 1e-290 && sum < 1e290) return std::sqrt(sum);
  for (int64_t p = begin; p < end; ++p) norm = std::hypot(norm, f(p));
  return norm;
}

}  // namespace detail

// L of A ~ L L^T, column by column. Of column j, the numbers w_i = a_ij - sum_k l_ik l_jk, i > j, k < j, over
// what was kept: those with |w_i| >= tolerance |a_j|_2 are kept, at most `fill` more than A has there, the
// largest first; then l_ij = w_i / sqrt(w_j). a_j is the column on and below the diagonal. Row j of (ptr,
// idx, values) is column j of A; what lies above the diagonal is not read.
inline Choice threshold_cholesky(const int64_t* ptr, int64_t n, const int64_t* idx, const double* values,
                                 int64_t fill, double tolerance) {
  Choice choice;
  std::vector<int64_t> first(n + 1, 0), size(n + 1, 1);  // columns below the diagonal; entries of each row
  Growing<int64_t> rows;
  Growing<double> l;
  rows.reserve(detail::expected_entries(ptr[n] / 2, n, fill)), l.reserve(rows.capacity());
  // Columns by the row of their next entry, that at at[k]: head[row], then after[column], to -1.
  std::vector<int64_t> head(n, -1), after(n, -1), at(n);
  const auto wait = [&](int64_t k) {
    if (at[k] == first[k + 1]) return;
    after[k] = head[rows[at[k]]], head[rows[at[k]]] = k;
  };
  std::vector<detail::Magnitude> sizes;
  FillRow<double> w(n);
  Pulse pulse;
  for (int64_t j = 0; j < n; ++j) {
    pulse(ptr[j + 1] - ptr[j] + 1);
    w.begin(j);
    w.insert(j, 0);
    int64_t own = 0, begin = ptr[j];
    while (begin < ptr[j + 1] && idx[begin] < j) ++begin;
    const double norm = detail::norm(begin, ptr[j + 1], [&](int64_t p) { return values[p]; });
    for (int64_t p = begin; p < ptr[j + 1]; ++p) {
      if (idx[p] == j)
        w[j] = values[p];
      else
        w.insert(idx[p], values[p]), ++own;
    }
    for (int64_t k = head[j], next; k >= 0; k = next) {
      next = after[k];
      const double factor = l[at[k]];
      pulse(first[k + 1] - at[k]);
      for (int64_t q = at[k]; q < first[k + 1]; ++q) w.at(rows[q], 0) -= factor * l[q];
      ++at[k];
      wait(k);
    }
    const double pivot = w[j];
    if (!(pivot > 0) || std::isinf(pivot)) {
      choice.row = j, choice.pivot = pivot;
      return choice;
    }
    std::vector<int64_t>& below = w.right();
    detail::keep_largest(below, [&](int64_t i) { return w[i]; }, tolerance * norm, own + fill, sizes);
    std::sort(below.begin(), below.end());
    const double root = std::sqrt(pivot);
    int64_t end = first[j];
    at[j] = end;
    rows.reserve(end + static_cast<int64_t>(below.size())), l.reserve(rows.capacity());
    for (const int64_t i : below) rows[end] = i, l[end++] = w[i] / root, ++size[i];
    first[j + 1] = end;
    wait(j);
  }
  // By rows; the diagonal comes last, since the columns before it come first.
  choice.ptr.assign(n + 1, 0);
  for (int64_t i = 0; i < n; ++i) choice.ptr[i + 1] = choice.ptr[i] + size[i];
  choice.idx.reserve(choice.ptr[n]);
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
  choice.ptr.assign(n + 1, 0);
  std::vector<int64_t> first(n + 1, 0), left;  // U right of the diagonal; what a row of L keeps
  std::vector<double> pivots(n);
  Growing<int64_t> columns;
  Growing<double> u;
  columns.reserve(detail::expected_entries(ptr[n] / 2, n, fill)), u.reserve(columns.capacity());
  choice.idx.reserve(2 * columns.capacity());
  std::vector<detail::Magnitude> sizes;
  FillRow<double> w(n);
  Pulse pulse;
  for (int64_t i = 0; i < n; ++i) {
    pulse(ptr[i + 1] - ptr[i] + 1);
    w.begin(i);
    w.insert(i, 0);
    int64_t own_left = 0, own_right = 0;
    const double norm = detail::norm(ptr[i], ptr[i + 1], [&](int64_t p) { return values[p]; });
    for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p) {
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
      for (int64_t q = first[k]; q < first[k + 1]; ++q) w.at(columns[q], 0) -= factor * u[q];
    }
    const double pivot = w[i];
    if (pivot == 0 || !std::isfinite(pivot)) {
      choice.row = i, choice.pivot = pivot;
      return choice;
    }
    pivots[i] = pivot;
    const auto value = [&](int64_t j) { return w[j]; };
    detail::keep_largest(left, value, least, own_left + fill, sizes);
    detail::keep_largest(w.right(), value, least, own_right + fill, sizes);
    std::sort(w.right().begin(), w.right().end());
    const std::vector<int64_t>& right = w.right();
    const auto length = static_cast<int64_t>(left.size() + right.size()) + 1;
    choice.ptr[i + 1] = choice.ptr[i] + length;
    choice.idx.reserve(choice.ptr[i + 1]);
    int64_t* const row = choice.idx.data() + choice.ptr[i];
    *std::copy(left.begin(), left.end(), row) = i;
    std::copy(right.begin(), right.end(), row + left.size() + 1);
    int64_t end = first[i];
    columns.reserve(end + length), u.reserve(columns.capacity());
    for (const int64_t j : right) columns[end] = j, u[end++] = w[j];
    first[i + 1] = end;
  }
  return choice;
}

}  // namespace learnsolve::analysis
