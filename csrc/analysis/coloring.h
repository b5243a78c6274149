// Greedy colorings. Of the rows of a square pattern: i and j are neighbors if there is an entry (i, j) or
// (j, i), i != j. Of the columns of any pattern: j and k are neighbors if a row has entries in both.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "analysis/interrupt.h"

namespace learnsolve::analysis {

// f(j) for every neighbor j of i, given the pattern and its transpose; once or twice.
template <class I, class F>
void for_each_neighbor(const I* ptr, const I* idx, const I* tptr, const I* tidx, int64_t i, const F& f) {
  for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p)
    if (idx[p] != i) f(static_cast<int64_t>(idx[p]));
  for (int64_t p = tptr[i]; p < tptr[i + 1]; ++p)
    if (tidx[p] != i) f(static_cast<int64_t>(tidx[p]));
}

// In the order of the rows, or of their numbers of neighbors (most first, rows with as many in order), each
// gets the smallest color that none of its neighbors has: at most as many colors as a row has neighbors,
// and one more. Returns the number of colors. O(n + nnz), and a sort for `largest_first`.
template <class I>
int64_t greedy_coloring(const I* ptr, int64_t n, const I* idx, const I* tptr, const I* tidx,
                        bool largest_first, I* colors) {
  std::vector<int64_t> order(n), seen(n, -1);
  Pulse pulse;
  const auto size = [&](int64_t i) { return ptr[i + 1] - ptr[i] + tptr[i + 1] - tptr[i] + 1; };
  std::iota(order.begin(), order.end(), int64_t{0});
  if (largest_first) {
    std::vector<int64_t> degree(n, 0);
    for (int64_t i = 0; i < n; ++i) {
      pulse(size(i));
      for_each_neighbor(ptr, idx, tptr, tidx, i, [&](int64_t j) {
        if (seen[j] != i) seen[j] = i, ++degree[i];
      });
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return pulse(1), degree[a] > degree[b]; });
  }
  std::fill(colors, colors + n, I(-1));
  std::vector<int64_t> taken;  // taken[c] = i: a neighbor of i has color c
  for (const int64_t i : order) {
    pulse(size(i));
    for_each_neighbor(ptr, idx, tptr, tidx, i, [&](int64_t j) {
      if (colors[j] >= 0) taken[colors[j]] = i;
    });
    size_t c = 0;
    while (c < taken.size() && taken[c] == i) ++c;
    if (c == taken.size()) taken.push_back(-1);
    colors[i] = static_cast<I>(c);
  }
  return static_cast<int64_t>(taken.size());
}

// Has no row two columns of one color?
template <class I>
bool is_column_coloring(const I* ptr, int64_t m, const I* idx, const I* colors, int64_t count) {
  std::vector<int64_t> seen(count, -1);
  Pulse pulse;
  for (int64_t i = 0; i < m; ++i) {
    pulse(ptr[i + 1] - ptr[i] + 1);
    for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p) {
      int64_t& row = seen[colors[idx[p]]];
      if (row == i) return false;
      row = i;
    }
  }
  return true;
}

// Rows by color, in order within one: those of color c stand at rows[first[c]] .. rows[first[c + 1] - 1].
template <class I>
void group_by_color(const I* colors, int64_t n, int64_t count, I* first, I* rows) {
  std::fill(first, first + count + 1, I(0));
  for (int64_t i = 0; i < n; ++i) ++first[colors[i] + 1];
  for (int64_t c = 0; c < count; ++c) first[c + 1] += first[c];
  std::vector<I> next(first, first + count);
  for (int64_t i = 0; i < n; ++i) rows[next[colors[i]]++] = static_cast<I>(i);
}

enum class Order { natural, largest_first, smallest_last };

// An order of vertices 0 .. n - 1: by degree, most first, or such that each has fewest neighbors among those
// before it (the last one of least degree is taken away, and so on). `for_each(v, f)` calls f(w) for the
// neighbors of v; one that comes more than once counts so often.
template <class ForEach>
std::vector<int64_t> vertex_order(int64_t n, Order kind, Pulse& pulse, const ForEach& for_each) {
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), int64_t{0});
  if (kind == Order::natural) return order;
  std::vector<int64_t> degree(n, 0);
  int64_t most = 0;
  for (int64_t v = 0; v < n; ++v) {
    for_each(v, [&](int64_t) { ++degree[v]; });
    pulse(degree[v] + 1);
    most = std::max(most, degree[v]);
  }
  if (kind == Order::largest_first) {
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return pulse(1), degree[a] > degree[b]; });
    return order;
  }
  // Buckets of vertices by degree: doubly linked lists, the latest first; -1 ends one.
  std::vector<int64_t> head(most + 1, -1), next(n), before(n);
  std::vector<bool> placed(n, false);
  const auto insert = [&](int64_t v) {
    const int64_t h = head[degree[v]];
    next[v] = h, before[v] = -1, head[degree[v]] = v;
    if (h >= 0) before[h] = v;
  };
  const auto erase = [&](int64_t v) {
    if (next[v] >= 0) before[next[v]] = before[v];
    (before[v] >= 0 ? next[before[v]] : head[degree[v]]) = next[v];
  };
  for (int64_t v = 0; v < n; ++v) insert(v);
  int64_t least = 0;
  for (int64_t at = n - 1; at >= 0; --at) {
    while (head[least] < 0) ++least;
    const int64_t v = head[least];
    pulse(degree[v] + 1);
    erase(v);
    placed[v] = true, order[at] = v;
    for_each(v, [&](int64_t w) {
      if (placed[w]) return;
      erase(w);
      --degree[w];
      insert(w);
      least = std::min(least, degree[w]);
    });
  }
  return order;
}

// The colors that the columns of a long row have, as bits: they are not searched again for each column.
struct LongRow {
  std::vector<uint64_t> colors;
  int64_t full = 0;  // words that have no free color
  void add(int64_t c) {
    if (c / 64 >= static_cast<int64_t>(colors.size())) colors.resize(c / 64 + 1, 0);
    colors[c / 64] |= uint64_t{1} << (c % 64);
    while (full < static_cast<int64_t>(colors.size()) && !~colors[full]) ++full;
  }
  bool has(int64_t c) const {
    return c / 64 < static_cast<int64_t>(colors.size()) && colors[c / 64] >> (c % 64) & 1;
  }
};

// Columns of one color have no row in common; each, in the order given, gets the smallest color possible.
// Rows of (ptr, idx), columns of (tptr, tidx). Returns the number of colors. O(sum of the squares of the
// lengths of the rows), of those longer than kLongRow less.
constexpr int64_t kLongRow = 128;
template <class I>
int64_t column_coloring(const I* ptr, int64_t m, const I* idx, const I* tptr, int64_t n, const I* tidx,
                        Order kind, I* colors) {
  Pulse pulse;
  const auto is_long = [&](int64_t i) { return ptr[i + 1] - ptr[i] > kLongRow; };
  const auto for_each = [&](int64_t j, const auto& f) {
    for (int64_t p = tptr[j]; p < tptr[j + 1]; ++p) {
      const int64_t i = tidx[p];
      if (is_long(i)) continue;  // it couples all its columns: no order of them is better
      for (int64_t q = ptr[i]; q < ptr[i + 1]; ++q)
        if (idx[q] != j) f(static_cast<int64_t>(idx[q]));
    }
  };
  const std::vector<int64_t> order = vertex_order(n, kind, pulse, for_each);
  std::vector<int64_t> taken, number(m, -1);
  std::vector<LongRow> long_rows;
  for (int64_t i = 0; i < m; ++i)
    if (is_long(i)) number[i] = static_cast<int64_t>(long_rows.size()), long_rows.emplace_back();
  std::fill(colors, colors + n, I(-1));
  for (const int64_t j : order) {
    int64_t c = 0, steps = 1;
    for_each(j, [&](int64_t k) {
      ++steps;
      if (colors[k] >= 0) taken[colors[k]] = j;
    });
    const auto at_long_rows = [&](const auto& f) {
      if (!long_rows.empty())
        for (int64_t p = tptr[j]; p < tptr[j + 1]; ++p)
          if (number[tidx[p]] >= 0) f(long_rows[number[tidx[p]]]);
    };
    at_long_rows([&](const LongRow& row) { c = std::max(c, 64 * row.full); });
    for (bool free = false; !free; ++c) {
      free = c >= static_cast<int64_t>(taken.size()) || taken[c] != j;
      at_long_rows([&](const LongRow& row) { free = free && !row.has(c); });
      ++steps;
    }
    colors[j] = static_cast<I>(--c);
    at_long_rows([&](LongRow& row) { row.add(c); });
    if (c >= static_cast<int64_t>(taken.size())) taken.resize(c + 1, -1);
    pulse(steps);
  }
  return static_cast<int64_t>(taken.size());
}

}  // namespace learnsolve::analysis
