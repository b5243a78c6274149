// Classical coarsening: strong connections, and the choice of coarse points.
//
// Source: J. W. Ruge, K. Stueben, "Algebraic multigrid", in S. F. McCormick (ed.), "Multigrid Methods"
// (1987), section 4.6; K. Stueben, in U. Trottenberg et al., "Multigrid" (2001), A.7.1.2 (aggressive).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "analysis/aggregation.h"
#include "analysis/interrupt.h"
#include "analysis/pattern.h"

namespace learnsolve::analysis {

// strong[p] of entry p = (i, j), j != i: |a_ij| >= theta max_k |a_ik|, and not zero. i depends on j then.
template <class I>
void classical_strength(const Graph<I>& A, double theta, uint8_t* strong) {
  Pulse pulse;
  for (int64_t i = 0; i < A.n; ++i) {
    pulse(2 * (A.ptr[i + 1] - A.ptr[i]) + 1);
    double largest = 0;
    for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p)
      if (A.idx[p] != i) largest = std::max(largest, std::fabs(A.values[p]));
    for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p)
      strong[p] = A.idx[p] != i && A.values[p] != 0 && std::fabs(A.values[p]) >= theta * largest;
  }
}

// The strong entries alone, and those of the transpose.
template <class I>
struct StrongGraph {
  std::vector<I> ptr, idx, tptr, tidx;

  explicit StrongGraph(int64_t n) : ptr(n + 1, 0), tptr(n + 1) {}
  StrongGraph(const Graph<I>& A, const uint8_t* strong) : ptr(A.n + 1, 0), tptr(A.n + 1) {
    Pulse pulse;
    idx.resize(A.ptr[A.n] + 1);  // one more, to be written and not kept
    I end = 0;
    for (int64_t i = 0; i < A.n; ++i) {
      pulse(A.ptr[i + 1] - A.ptr[i] + 1);
      for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p) {
        idx[end] = A.idx[p];
        end += strong[p];
      }
      ptr[i + 1] = end;
    }
    idx.resize(end);
    finish();
  }
  void finish() {
    const int64_t n = static_cast<int64_t>(ptr.size()) - 1;
    tidx.resize(idx.size());
    std::vector<I> places(idx.size());
    transpose(ptr.data(), n, idx.data(), n, tptr.data(), tidx.data(), places.data());
  }
};

// Points in order of their weights, which change by one: those of one weight stand together.
template <class I>
class ByWeight {
 public:
  explicit ByWeight(const std::vector<I>& weight) : weight_(weight), at_(weight.size()) {
    const I n = static_cast<I>(weight.size());
    // A weight, at most the number of neighbors at first, grows at most by as many again.
    const int64_t most = n == 0 ? 0 : 2 * *std::max_element(weight.begin(), weight.end());
    first_.assign(most + 2, 0), size_.assign(most + 2, 0);
    for (const I w : weight) ++size_[w];
    for (int64_t w = 1; w < static_cast<int64_t>(first_.size()); ++w)
      first_[w] = first_[w - 1] + size_[w - 1];
    order_.resize(n);
    std::vector<I> next = first_;
    for (I i = 0; i < n; ++i) order_[at_[i] = next[weight[i]]++] = i;
  }
  // The last one, taken out; points are taken from the end on.
  int64_t take(int64_t place) {
    const I i = order_[place];
    --size_[weight_[i]];
    return i;
  }
  void raise(int64_t i) {
    const I w = weight_[i];
    if (w + 2 >= static_cast<int64_t>(first_.size())) first_.resize(2 * w + 4, 0), size_.resize(2 * w + 4, 0);
    const I last = first_[w] + size_[w] - 1;
    swap(at_[i], last);
    --size_[w], ++size_[w + 1];
    first_[w + 1] = last;
    ++weight_[i];
  }
  void lower(int64_t i) {
    const I w = weight_[i];
    if (w == 0) return;
    swap(at_[i], first_[w]);
    --size_[w], ++size_[w - 1];
    ++first_[w];
    first_[w - 1] = first_[w] - size_[w - 1];
    --weight_[i];
  }

 private:
  void swap(I a, I b) {
    std::swap(order_[a], order_[b]);
    at_[order_[a]] = a, at_[order_[b]] = b;
  }
  std::vector<I> weight_, at_, first_, size_, order_;
};

// coarse[i]: is i a coarse point? The point on which most others depend becomes one and those others fine;
// what these depend on gains weight. `second`: of two fine points with a strong connection that have no
// strong coarse point in common one becomes coarse.
template <class I>
void split(const StrongGraph<I>& S, bool second, uint8_t* coarse) {
  constexpr uint8_t kFine = 0, kCoarse = 1, kOpen = 2;
  const int64_t n = static_cast<int64_t>(S.ptr.size()) - 1;
  std::vector<I> weight(n);
  for (int64_t i = 0; i < n; ++i) {
    weight[i] = S.tptr[i + 1] - S.tptr[i];
    coarse[i] = weight[i] == 0 ? kFine : kOpen;
  }
  ByWeight<I> points(weight);
  std::vector<I> fine;
  Pulse pulse;
  for (int64_t place = n - 1; place >= 0; --place) {
    const int64_t i = points.take(place);
    pulse(S.tptr[i + 1] - S.tptr[i] + 1);
    if (coarse[i] != kOpen) continue;
    coarse[i] = kCoarse;
    fine.clear();
    for (int64_t t = S.tptr[i]; t < S.tptr[i + 1]; ++t)
      if (const I j = S.tidx[t]; coarse[j] == kOpen) coarse[j] = kFine, fine.push_back(j);
    for (const I j : fine) {
      pulse(S.ptr[j + 1] - S.ptr[j]);
      for (int64_t q = S.ptr[j]; q < S.ptr[j + 1]; ++q)
        if (coarse[S.idx[q]] == kOpen) points.raise(S.idx[q]);
    }
    for (int64_t q = S.ptr[i]; q < S.ptr[i + 1]; ++q)
      if (coarse[S.idx[q]] == kOpen) points.lower(S.idx[q]);
  }
  if (!second) return;
  std::vector<I> near(n, I(-1));  // near[j] = i: j is a strong coarse point of i
  for (int64_t i = 0; i < n; ++i) {
    if (coarse[i]) continue;
    for (int64_t p = S.ptr[i]; p < S.ptr[i + 1]; ++p)
      if (coarse[S.idx[p]]) near[S.idx[p]] = static_cast<I>(i);
    int64_t chosen = -1;
    for (int64_t p = S.ptr[i]; p < S.ptr[i + 1]; ++p) {
      const int64_t j = S.idx[p];
      if (coarse[j] || j == chosen) continue;
      bool common = false;
      pulse(S.ptr[j + 1] - S.ptr[j] + 1);
      for (int64_t q = S.ptr[j]; q < S.ptr[j + 1] && !common; ++q) common = near[S.idx[q]] == i;
      if (common) continue;
      if (chosen >= 0) {
        chosen = i;
        break;
      }
      chosen = j, near[j] = static_cast<I>(i);
    }
    if (chosen >= 0) coarse[chosen] = kCoarse;
  }
}

// Of the coarse points, those that remain coarse where the others are interpolated from afar: a second split,
// of the graph in which i depends on j directly or along at least two paths of two strong connections. A
// point without any connection there stays.
template <class I>
void split_again(const StrongGraph<I>& S, uint8_t* coarse) {
  const int64_t n = static_cast<int64_t>(S.ptr.size()) - 1;
  std::vector<I> number(n), points, paths(n, 0), reached;
  for (int64_t i = 0; i < n; ++i)
    if (coarse[i]) number[i] = static_cast<I>(points.size()), points.push_back(static_cast<I>(i));
  StrongGraph<I> G(static_cast<int64_t>(points.size()));
  Pulse pulse;
  for (size_t c = 0; c < points.size(); ++c) {
    const I i = points[c];
    const auto count = [&](I j, I more) {
      if (!coarse[j] || j == i) return;
      if (paths[j] == 0) reached.push_back(j);
      paths[j] += more;
    };
    for (int64_t p = S.ptr[i]; p < S.ptr[i + 1]; ++p) {
      const int64_t k = S.idx[p];
      pulse(S.ptr[k + 1] - S.ptr[k] + 1);
      count(S.idx[p], 2);
      for (int64_t q = S.ptr[k]; q < S.ptr[k + 1]; ++q) count(S.idx[q], 1);
    }
    std::sort(reached.begin(), reached.end());
    for (const I j : reached) {
      if (paths[j] > 1) G.idx.push_back(number[j]);
      paths[j] = 0;
    }
    reached.clear();
    G.ptr[c + 1] = static_cast<I>(G.idx.size());
  }
  G.finish();
  std::vector<uint8_t> remains(points.size());
  split(G, false, remains.data());
  for (size_t c = 0; c < points.size(); ++c)
    coarse[points[c]] = remains[c] || (G.ptr[c] == G.ptr[c + 1] && G.tptr[c] == G.tptr[c + 1]);
}

}  // namespace learnsolve::analysis
