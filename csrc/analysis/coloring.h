// Greedy colorings. Of the rows of a square pattern: i and j are neighbors if there is an entry (i, j) or
// (j, i), i != j. Of the columns of any pattern: j and k are neighbors if a row has entries in both.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "analysis/pieces.h"

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

// Colorings of the rows of a symmetric pattern from which a symmetric matrix is recovered: neighbors differ,
// and the graph of any two colors consists of stars (star coloring) or of trees (acyclic coloring).
// Gebremedhin, Tarafdar, Manne and Pothen, "New acyclic and star coloring algorithms with application to
// computing Hessians", SIAM J. Sci. Comput. 29 (2007).

// Rows in an order, and colors of those that are finished. A row with very many neighbors comes first and has
// a color of its own: no pair of colors that includes it can fail, so that its neighbors are not searched.
template <class I>
class SymmetricColoring {
 public:
  SymmetricColoring(const I* ptr, int64_t n, const I* idx, Order kind, I* colors)
      : ptr_(ptr), idx_(idx), n_(n), colors_(colors), forbidden_(n + 1, -1) {
    order_ = vertex_order(n, kind, pulse_,
                          [&](int64_t v, const auto& f) { each(v, [&](int64_t w, int64_t) { f(w); }); });
    std::fill(colors, colors + n, I(-1));
    const auto many = std::max<int64_t>(64, static_cast<int64_t>(4 * std::sqrt(double(ptr[n]))));
    for (int64_t v = 0; v < n; ++v)
      if (ptr[v + 1] - ptr[v] > many) colors[v] = static_cast<I>(count_++);
    own_ = count_;
  }

  // P4-free: no path of four rows has two colors.
  int64_t star() {
    for (const int64_t v : order_) {
      if (colors_[v] >= 0) continue;
      int64_t steps = 1;
      each(v, [&](int64_t w, int64_t) {
        if (colors_[w] >= 0) forbid(colors_[w], v);
        if (has_own(w)) return;
        each(w, [&](int64_t x, int64_t) {
          ++steps;
          if (x == v || colors_[x] < 0 || has_own(x)) return;
          if (colors_[w] < 0) return forbid(colors_[x], v);
          each(x, [&](int64_t y, int64_t) {
            ++steps;
            if (y != w && colors_[y] == colors_[w]) forbid(colors_[x], v);
          });
        });
      });
      choose(v);
      pulse_(steps);
    }
    return count_;
  }

  // No cycle has two colors. `edge`: the number of the pair of each entry, the same for (i, j) and (j, i).
  int64_t acyclic(const I* edge, int64_t edges) {
    parent_.resize(edges);
    std::iota(parent_.begin(), parent_.end(), int64_t{0});
    // Of each tree (by its root), and of each color: the last row that came there, and from which neighbor.
    std::vector<Visit> tree(edges), near(n_ + 1);
    for (const int64_t v : order_) {
      if (colors_[v] >= 0) continue;
      int64_t steps = 1;
      each(v, [&](int64_t w, int64_t) {
        if (colors_[w] >= 0) forbid(colors_[w], v);
      });
      each(v, [&](int64_t w, int64_t) {
        if (colors_[w] < 0 || has_own(w)) return;
        each(w, [&](int64_t x, int64_t p) {
          ++steps;
          if (colors_[x] < 0 || has_own(x) || forbidden_[colors_[x]] == v) return;
          Visit& visit = tree[find(edge[p])];
          if (visit.row != v)
            visit = {v, w, 0};
          else if (visit.from != w)
            forbid(colors_[x], v);  // v with this color would close a cycle in this tree
        });
      });
      choose(v);
      if (has_own(v)) continue;
      each(v, [&](int64_t w, int64_t p) {  // the star of v and its neighbors of one color
        if (colors_[w] < 0 || has_own(w)) return;
        Visit& visit = near[colors_[w]];
        if (visit.row != v)
          visit = {v, w, edge[p]};
        else
          join(edge[p], visit.edge);
      });
      each(v, [&](int64_t w, int64_t p) {
        if (colors_[w] < 0 || has_own(w)) return;
        each(w, [&](int64_t x, int64_t q) {
          ++steps;
          if (x != v && colors_[x] == colors_[v]) join(edge[p], edge[q]);
        });
      });
      pulse_(steps);
    }
    return count_;
  }

 private:
  struct Visit {
    int64_t row = -1, from = -1, edge = -1;
  };
  template <class F>
  void each(int64_t v, const F& f) const {
    for (int64_t p = ptr_[v]; p < ptr_[v + 1]; ++p)
      if (idx_[p] != v) f(static_cast<int64_t>(idx_[p]), p);
  }
  bool has_own(int64_t v) const { return colors_[v] >= 0 && colors_[v] < own_; }
  void forbid(int64_t color, int64_t v) { forbidden_[color] = v; }
  void choose(int64_t v) {
    int64_t c = own_;
    while (c < count_ && forbidden_[c] == v) ++c;
    colors_[v] = static_cast<I>(c);
    count_ = std::max(count_, c + 1);
  }
  int64_t find(int64_t e) {
    while (parent_[e] != e) e = parent_[e] = parent_[parent_[e]];
    return e;
  }
  void join(int64_t a, int64_t b) { parent_[find(a)] = find(b); }

  const I *ptr_, *idx_;
  int64_t n_, count_ = 0, own_ = 0;
  I* colors_;
  std::vector<int64_t> forbidden_, order_, parent_;
  Pulse pulse_;
};

// How the entries of a symmetric matrix follow from its products with the sums of an acyclic coloring. The
// product for color c shows in row i the sum of the entries of row i in the columns of color c: an equation
// for one of them, once the others are known. Unknowns are the pairs of entries (i, j), (j, i), and the
// diagonal, in an order in which they can be solved for.
template <class I>
struct Substitution {
  std::vector<I> ptr, idx;  // the unknowns of each equation, a unit lower triangle
  std::vector<I> equation;  // of each unknown: the entry whose row and color are those of its equation
  std::vector<I> unknown;   // of each entry
};

// `perm` takes each entry to that across the diagonal. O(nnz log n) for sorting the rows by color.
template <class I>
Substitution<I> substitution(const I* ptr, int64_t n, const I* idx, const I* perm, const I* colors) {
  const int64_t nnz = ptr[n];
  Substitution<I> s;
  s.ptr = {0}, s.unknown.assign(nnz, I(-1));
  // Entries by equation: those of a row and a color in sequence. first[g] is where equation g begins.
  std::vector<I> sorted(nnz), group(nnz), first, left, ready;
  std::iota(sorted.begin(), sorted.end(), I(0));
  Pulse pulse;
  for (int64_t i = 0; i < n; ++i) {
    const auto color = [&](I p) { return colors[idx[p]]; };
    std::sort(sorted.begin() + ptr[i], sorted.begin() + ptr[i + 1],
              [&](I a, I b) { return pulse(1), color(a) != color(b) ? color(a) < color(b) : a < b; });
    for (int64_t q = ptr[i]; q < ptr[i + 1]; ++q) {
      if (q == ptr[i] || color(sorted[q]) != color(sorted[q - 1])) first.push_back(static_cast<I>(q));
      group[sorted[q]] = static_cast<I>(first.size() - 1);
    }
  }
  const int64_t groups = static_cast<int64_t>(first.size());
  first.push_back(static_cast<I>(nnz));
  for (int64_t g = 0; g < groups; ++g) {
    left.push_back(first[g + 1] - first[g]);
    if (left[g] == 1) ready.push_back(static_cast<I>(g));
  }
  for (size_t k = 0; k < ready.size(); ++k) {
    const int64_t g = ready[k];
    pulse(first[g + 1] - first[g]);
    if (left[g] != 1) continue;  // its unknown was that of another equation
    I last = 0;
    for (int64_t q = first[g]; q < first[g + 1]; ++q)
      if (s.unknown[sorted[q]] < 0)
        last = sorted[q];
      else
        s.idx.push_back(s.unknown[sorted[q]]);
    std::sort(s.idx.begin() + s.ptr.back(), s.idx.end());
    const I number = static_cast<I>(s.equation.size()), across = perm[last];
    s.idx.push_back(number);
    s.ptr.push_back(static_cast<I>(s.idx.size()));
    s.equation.push_back(last);
    s.unknown[last] = s.unknown[across] = number;
    left[g] = 0;
    if (across != last && --left[group[across]] == 1) ready.push_back(group[across]);
  }
  return s;
}

}  // namespace learnsolve::analysis
