// The set-up of multigrid: smoothed aggregation, spectral radii, classical splitting and interpolation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "analysis/pattern.h"
#include "analysis/pieces.h"
#include "analysis/sparse_products.h"

namespace learnsolve::analysis {

// One level of smoothed aggregation: nodes with a strong connection are joined to aggregates, candidates of
// the near null space are cut into them, and one step of Jacobi's method smooths the result.
//
// Source: P. Vanek, J. Mandel, M. Brezina, "Algebraic multigrid by smoothed aggregation for second and fourth
// order elliptic problems", Computing 56 (1996), section 5.

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

// Krylov spaces of D^-1 A, for estimates of its spectral radius.
//
// Source: Y. Saad, "Numerical Methods for Large Eigenvalue Problems" (2011), sections 6.2 and 6.3.

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

// Classical coarsening: strong connections, and the choice of coarse points.
//
// Source: J. W. Ruge, K. Stueben, "Algebraic multigrid", in S. F. McCormick (ed.), "Multigrid Methods"
// (1987), section 4.6; K. Stueben, in U. Trottenberg et al., "Multigrid" (2001), A.7.1.2 (aggressive).

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

// Interpolation of classical multigrid: fine points from coarse ones.
//
// Source: J. W. Ruge, K. Stueben, "Algebraic multigrid" (1987), section 4.5 (classical); H. De Sterck, R. D.
// Falgout, J. W. Nolting, U. M. Yang, "Distance-two interpolation for parallel algebraic multigrid", Numer.
// Linear Algebra Appl. 15 (2008), doi:10.1002/nla.559, equation 4.10 (extended+i); K. Stueben, in U.
// Trottenberg et al., "Multigrid" (2001), A.7.3 (multipass).

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
