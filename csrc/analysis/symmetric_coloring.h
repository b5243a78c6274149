// Colorings of the rows of a symmetric pattern from which a symmetric matrix is recovered: neighbors differ,
// and the graph of any two colors consists of stars (star coloring) or of trees (acyclic coloring).
// Gebremedhin, Tarafdar, Manne and Pothen, "New acyclic and star coloring algorithms with application to
// computing Hessians", SIAM J. Sci. Comput. 29 (2007).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "analysis/coloring.h"
#include "analysis/interrupt.h"

namespace learnsolve::analysis {

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
