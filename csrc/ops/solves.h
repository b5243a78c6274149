// Triangular systems on raw pointers: what csr_sptrsv and its backward are made of, and what preconditioners
// that apply a factor in a loop call without any tensor in between.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/pcg_column.cuh"
#include "ops/host.h"
#include "ops/pcg.h"

namespace learnsolve {

// A triangular system on the CPU: `arguments` are its tensors, or a list of them, and two bools.
struct TriangularStructure : SparseTriangle {
  template <class... Arguments>
  explicit TriangularStructure(const char* name, const Arguments&... arguments)
      : SparseTriangle(name, arguments...) {
    check_device(name, idx, {&levels});
    STD_TORCH_CHECK(order.scalar_type() == idx.scalar_type() && levels.scalar_type() == idx.scalar_type(),
                    name, ": order and levels must have the index type of idx");
    STD_TORCH_CHECK(blocks.dim() == 2 && blocks.size(0) >= 1 && blocks.size(1) == 3, name,
                    ": blocks must be (number of blocks + 1, 3)");
    STD_TORCH_CHECK(Structure::entry(ptr, 0) == 0 && Structure::entry(ptr, rows()) == entries() &&
                        Structure::entry(blocks, 0) == 0 &&
                        Structure::entry(blocks, 3 * n_blocks()) == rows(),
                    name, ": ptr must end at the number of entries and blocks must cover all rows");
    STD_TORCH_CHECK(unit || entries() >= rows(), name, ": a row has no diagonal entry");
    STD_TORCH_CHECK(n_levels() == 0 || (order.numel() == rows() && Structure::entry(levels, 0) == 0 &&
                                        Structure::entry(levels, n_levels()) == rows()),
                    name, ": order and levels must cover all rows");
    if (contents_checked) check_contents();
  }
  // For values of `nnz` entries.
  void check_places(int64_t nnz) const { check_range(name, "perm", perm, 0, nnz); }

  int64_t n_blocks() const { return blocks.numel() / 3 - 1; }
  int64_t n_levels() const { return std::max<int64_t>(levels.numel() - 1, 0); }
  int64_t work(int64_t k) const { return (entries() + rows()) * std::max<int64_t>(k, 1); }

  template <class T, class I>
  TriangleView<T, I> view(const T* values) const {
    return {{data<I>(ptr), data<I>(idx), data<I>(perm), values},
            data<I>(blocks),
            n_blocks(),
            rows(),
            upper,
            unit};
  }

 private:
  void check_contents() const {
    check_bounds(name, "ptr", ptr, entries());
    check_bounds(name, "blocks", blocks, rows(), 3);
    check_range(name, "columns", idx, 0, rows());
    const Entries at(ptr), column(idx), table(blocks);
    for (int64_t i = 0; i < rows(); ++i) {
      int64_t p = at[i], end = at[i + 1];
      if (!unit) {
        STD_TORCH_CHECK(p < end && column[upper ? p : end - 1] == i, name, ": row ", i,
                        " must have its diagonal entry ", upper ? "first" : "last");
        upper ? ++p : --end;
      }
      for (; p < end; ++p)
        STD_TORCH_CHECK(upper ? column[p] > i : column[p] < i, name, ": row ", i, " has column ", column[p],
                        ", outside of the triangle");
    }
    for (int64_t b = 0; b < n_blocks(); ++b)
      if (const int64_t length = table[3 * b + 1]; length > 0)
        check_uniform(*this, table[3 * b], table[3 * b + 3], length, table[3 * b + 2]);
    if (n_levels() == 0) return;
    check_bounds(name, "levels", levels, rows());
    check_range(name, "order", order, 0, rows());
  }
};

// Level by level, rows(order, r0, r1) for parts of a level on the threads. False if one of them is.
template <class I, class Rows>
bool solve_by_levels(const TriangularStructure& S, int64_t k, const Rows& rows) {
  const I* order = data<I>(S.order);
  const I* levels = data<I>(S.levels);
  const int64_t n = S.n_levels(), mean = std::max<int64_t>(S.work(k) / std::max<int64_t>(S.rows(), 1), 1);
  std::atomic<bool> solved{true};
  for (int64_t t = 0; t < n && solved; ++t) {
    const int64_t l = S.upper ? n - 1 - t : t;
    parallel_for(levels[l], levels[l + 1], std::max<int64_t>(kGrain / mean / 4, 1),
                 [&](int64_t r0, int64_t r1) {
                   if (!rows(order, r0, r1)) solved = false;
                 });
  }
  return solved;
}

// A sweep through the rows of `batch` > 0 systems with k > 0 columns each, on the threads: columns(s, c0, c1)
// for columns of system s, or rows(order, r0, r1) for all columns of the only one. False if one of them is.
template <class I, class Columns, class Rows>
bool triangular_sweep(const TriangularStructure& S, int64_t batch, int64_t k, const Columns& columns,
                      const Rows& rows) {
  const int64_t threads = threads_here();
  const bool parallel = threads > 1 && S.work(batch * k) >= 2 * kGrain;
  // Columns in parts of full cache lines: every part reads the whole matrix once more.
  constexpr int64_t line = 32;
  const int64_t wanted = (threads + batch - 1) / std::max<int64_t>(batch, 1);
  const int64_t share = (k + wanted - 1) / wanted;
  const int64_t width = parallel ? (share + line - 1) / line * line : k;
  const int64_t parts = (k + width - 1) / width;
  if (parallel && batch * parts == 1 && S.n_levels() > 0) return solve_by_levels<I>(S, k, rows);
  std::atomic<bool> solved{true};
  const auto solve = [&](int64_t u0, int64_t u1) {
    for (int64_t u = u0; u < u1; ++u) {
      const int64_t c0 = u % parts * width;
      if (!columns(u / parts, c0, std::min(c0 + width, k))) solved = false;
    }
  };
  if (parallel && batch * parts > 1)
    parallel_for(0, batch * parts, 1, solve);
  else
    solve(0, batch * parts);
  return solved;
}

// T x_s = b_s for `batch` > 0 systems of k > 0 right-hand sides each, row-major. values advance by
// values_step from one system to the next (0: one matrix), b by b_step; x may be b. False if a diagonal entry
// has no reciprocal (`zero_on_diagonal` finds it); x then holds nothing of use. No bit depends on the number
// of threads.
template <class T, class I>
bool triangular_solve(const TriangularStructure& S, const T* values, int64_t values_step, const T* b,
                      int64_t b_step, T* x, int64_t batch, int64_t k) {
  const auto& table = kernels().get<T, I>();
  return triangular_sweep<I>(
      S, batch, k,
      [&](int64_t s, int64_t c0, int64_t c1) {
        return table.sptrsv(S.view<T, I>(values + s * values_step), b + s * b_step, x + s * S.rows() * k, k,
                            c0, c1);
      },
      [&](const I* order, int64_t r0, int64_t r1) {
        return table.sptrsv_rows(S.view<T, I>(values), order, r0, r1, b, x, k);
      });
}

// For T x_s = b_s with y_s = T^-T g_s: the gradients -<u_i, w_j>, summed over the systems where they share
// one matrix, into ga. S holds T's entries by rows of the matrix: u = y and w = x, the other way round for
// the solve with the transpose. Entries that S does not hold are not written.
template <class T, class I>
void triangular_gradient(const TriangularStructure& S, int64_t values_step, const T* u, const T* w,
                         int64_t batch, int64_t k, T* ga) {
  const int64_t n = S.rows(), nk = n * k;
  const int64_t grain = std::max<int64_t>(kGrain * n / std::max<int64_t>(S.work(batch * k), 1), 1);
  parallel_for(0, n, grain, [&](int64_t r0, int64_t r1) {
    for (int64_t s = 0; s < batch; ++s)
      kernels().get<T, I>().sptrsv_gradient(S.view<T, I>(nullptr), r0, r1, u + s * nk, w + s * nk, k,
                                            ga + s * values_step, values_step == 0 && s > 0);
  });
}

// First row whose diagonal entry has no finite reciprocal, or -1.
template <class T, class I>
int64_t zero_on_diagonal(const TriangularStructure& S, const T* values, T& value) {
  const TriangleView<T, I> view = S.view<T, I>(values);
  for (int64_t i = 0; i < S.rows() && !S.unit; ++i) {
    const int64_t p = S.upper ? view.A.ptr[i] : view.A.ptr[i + 1] - 1;
    value = values[view.A.perm ? static_cast<int64_t>(view.A.perm[p]) : p];
    const T r = T(1) / value;
    if (r - r != 0 && r == r) return i;
  }
  return -1;
}

// What preconditioned conjugate gradients and their adjoint share: the preconditioner, sums.

// Sums a block and column, and their totals.
template <class T>
struct Sums {
  std::vector<T> parts;
  T* room(int64_t blocks, int64_t k) {
    parts.resize(blocks * k);
    return parts.data();
  }
  double total(int64_t blocks, int64_t k, int64_t c) const {
    double sum = 0;
    for (int64_t b = 0; b < blocks; ++b) sum += parts[b * k + c];
    return sum;
  }
};

// The values of a transpose in its own order: a loop reads them often, and through `perm` that takes twice as
// long.
template <class T, class I>
std::vector<T> transposed_values(const Structure& St, const T* values) {
  std::vector<T> own(St.nnz());
  const I* perm = data<I>(St.perm);
  parallel_for(0, St.nnz(), kGrain, [&](int64_t p0, int64_t p1) {
    for (int64_t p = p0; p < p1; ++p) own[p] = values[perm[p]];
  });
  return own;
}

// With the contents of all structures checked for products with n x n matrices.
struct Factor : FactorStructures<Structure, TriangularStructure> {
  Factor(const char* name, const PcgSizes& p, const std::vector<Tensor>& M, const Structure& S)
      : FactorStructures(name, p, M, S.idx) {
    S.check_columns(p.n);
    if (rows) rows->check_columns(width);
    if (columns) columns->check_columns(p.n);
    if (lower) lower->check_places(rows->nnz()), upper->check_places(rows->nnz());
  }
};

// A factor with values.
template <class T, class I>
class AppliedFactor {
 public:
  AppliedFactor(const Factor& factor, const T* values_) : of(factor), values(values_) {
    if (of.columns) transposed = transposed_values<T, I>(*of.columns, values);
  }
  // y = L^T x or L^-1 x
  void first(const T* x, int64_t k, T* y) const {
    if (of.lower) return solve(*of.lower, x, k, y);
    const Structure& S = *of.columns;
    multiply(S, {data<I>(S.ptr), data<I>(S.idx), nullptr, transposed.data()}, x, k, y);
  }
  // y = L x or L^-T x
  void second(const T* x, int64_t k, T* y) const {
    if (of.upper) return solve(*of.upper, x, k, y);
    multiply(*of.rows, of.rows->view<T, I>(values), x, k, y);
  }

 private:
  const Factor& of;
  const T* values;
  std::vector<T> transposed;

  static void multiply(const Structure& S, const CsrView<T, I>& view, const T* x, int64_t k, T* y) {
    parallel_blocks<I>(S, k, [&](int64_t b0, int64_t b1) {
      kernels().get<T, I>().spmm(view, S.row_blocks<I>(), b0, b1, x, k, y, false);
    });
  }
  void solve(const TriangularStructure& S, const T* x, int64_t k, T* y) const {
    if (S.rows() * k == 0 || triangular_solve<T, I>(S, values, 0, x, 0, y, 1, k)) return;
    T value = 0;
    const int64_t row = zero_on_diagonal<T, I>(S, values, value);
    STD_TORCH_CHECK(false, "csr_pcg: cannot divide by the diagonal of the factor: row ", row, " has ", value);
  }
};

// A matrix A and M = K^-T S K^-1 with A = K + K^T - E, K lower triangular, S and E diagonal, as it is for
// SSOR and for incomplete factors without fill-in on grids. One sweep through the rows of K gives A p and
// K^-1 A p where K^T p is known. The rows of K and of K^T are kept divided by their diagonal, D.
//
// Source: S. C. Eisenstat, "Efficient implementation of a class of preconditioned conjugate gradient
// methods", SIAM J. Sci. Stat. Comput. 2 (1981) 1-4.
template <class T, class I>
class Splitting {
 public:
  // Entries per row from which it takes less time, whatever the number of columns. An iteration with a
  // product takes 1.2 to 1.6 times as long with 7 entries per row, 1.4 to 1.9 with 9, 1.5 to 1.7 with 27, but
  // 0.9 to 1.0 times with 5: there vectors are most of what is read, and those of the splitting are more.
  static constexpr int64_t kEntries = 6;
  // M = (L L^T)^-1 with L = K S^-1/2 fits A, up to rounding? Entries must have the same places.
  bool fits(const Structure& A, const T* a, const Factor& factor, const T* m) {
    of = &factor;
    const TriangularStructure &L = *factor.lower, &U = *factor.upper;
    const int64_t n = A.rows();
    if (A.nnz() < kEntries * n || A.nnz() != L.entries() + U.entries() - n) return false;
    lower = room(L.entries()), upper = room(U.entries());
    d = room(n), s = room(n), s_over_d = room(n), root = room(n);
    const CsrView<T, I> view = A.view<T, I>(a), l = L.view<T, I>(m).A, u = U.view<T, I>(m).A;
    return everywhere(n, [&](int64_t i) { return take_row(i, view, l, u); }) &&
           everywhere(n, [&](int64_t i) { return is_symmetric(i, view, l); });
  }

  // z = K^-1 r
  void solve(const T* r, int64_t k, T* z) const {
    by_rows(k, [&](int64_t i) {
      for (int64_t c = 0; c < k; ++c) z[i * k + c] = r[i * k + c] / d[i];
    });
    sweep(*of->lower, lower, {z, z}, k);
  }
  // h = D^-1 K^T p
  void multiply(const T* p, int64_t k, T* h) const {
    const TriangleView<T, I> U = of->upper->template view<T, I>(upper.get());
    by_rows(k, [&](int64_t i) {
      for (int64_t c = 0; c < k; ++c) h[i * k + c] = p[i * k + c];
      for (int64_t e = U.A.ptr[i] + 1; e < U.A.ptr[i + 1]; ++e)
        for (int64_t c = 0; c < k; ++c) h[i * k + c] += upper[e] * p[U.A.idx[e] * k + c];
    });
  }
  // p = (D^-1 K^T)^-1 h
  void direction(const T* h, int64_t k, T* p) const { sweep(*of->upper, upper, {h, p}, k); }
  // q = A p,  z = K^-1 q
  void product(const T* p, const T* h, int64_t k, T* q, T* z) const {
    sweep(*of->lower, lower, {h, z, p, d.get(), q}, k);
  }

  using Numbers = std::unique_ptr<T[]>;
  Numbers s, s_over_d;

 private:
  const Factor* of = nullptr;
  Numbers lower, upper, d, root;  // root: S^1/2

  static Numbers room(int64_t n) { return std::make_unique_for_overwrite<T[]>(n); }
  static bool near(T a, T b) { return std::abs(a - b) <= 4 * kEpsilon<T> * std::abs(b); }

  template <class F>
  static bool everywhere(int64_t n, const F& f) {
    std::atomic<bool> all{true};
    parallel_for(0, n, kGrain / 8, [&](int64_t r0, int64_t r1) {
      for (int64_t i = r0; i < r1; ++i)
        if (!f(i)) return all.store(false);
    });
    return all;
  }
  template <class F>
  void by_rows(int64_t k, const F& f) const {
    parallel_for(0, of->lower->rows(), std::max<int64_t>(kGrain / 8 / k, 1), [&](int64_t r0, int64_t r1) {
      for (int64_t i = r0; i < r1; ++i) f(i);
    });
  }

  // Row i of A is that of K, of K^T and of E.
  bool take_row(int64_t i, const CsrView<T, I>& A, const CsrView<T, I>& L, const CsrView<T, I>& U) {
    const T* m = U.values;
    const int64_t l0 = L.ptr[i], l1 = L.ptr[i + 1] - 1, u0 = U.ptr[i] + 1, u1 = U.ptr[i + 1];
    const int64_t diagonal = A.ptr[i] + l1 - l0;
    if (A.ptr[i + 1] - diagonal != 1 + u1 - u0 || A.idx[diagonal] != i) return false;
    const T aii = A.values[diagonal], own = m[U.perm[u0 - 1]];
    root[i] = aii / own;
    for (int64_t e = u0; e < u1; ++e)
      if (const T v = m[U.perm[e]]; v != T(0)) {
        root[i] = A.values[diagonal + 1 + e - u0] / v;
        break;
      }
    d[i] = own * root[i], s[i] = root[i] * root[i];
    const T inverse = 1 / d[i];
    s_over_d[i] = s[i] * inverse;
    // With a larger D, A p would be the small difference of large numbers.
    bool same = std::abs(d[i]) <= 8 * std::abs(aii) && is_finite(inverse) && is_finite(s[i]);
    for (int64_t e = l0, at = A.ptr[i]; e < l1; ++e, ++at) {
      same &= A.idx[at] == L.idx[e];
      lower[e] = A.values[at] * inverse;
    }
    lower[l1] = aii * inverse - 1;
    upper[u0 - 1] = 1;
    for (int64_t e = u0, at = diagonal + 1; e < u1; ++e, ++at) {
      same &= A.idx[at] == U.idx[e] && near(m[U.perm[e]] * root[i], A.values[at]);
      upper[e] = A.values[at] * inverse;
    }
    return same;
  }
  bool is_symmetric(int64_t i, const CsrView<T, I>& A, const CsrView<T, I>& L) const {
    bool same = true;
    for (int64_t e = L.ptr[i], at = A.ptr[i]; e < L.ptr[i + 1] - 1; ++e, ++at)
      same &= near(L.values[L.perm ? static_cast<int64_t>(L.perm[e]) : e] * root[L.idx[e]], A.values[at]);
    return same;
  }

  void sweep(const TriangularStructure& S, const Numbers& values, const ScaledSweep<T>& a, int64_t k) const {
    const auto& table = kernels().get<T, I>();
    TriangleView<T, I> view = S.view<T, I>(values.get());
    view.A.perm = nullptr;
    triangular_sweep<I>(
        S, 1, k, [&](int64_t, int64_t c0, int64_t c1) { return table.scaled_sptrsv(view, a, k, c0, c1); },
        [&](const I* order, int64_t r0, int64_t r1) {
          return table.scaled_sptrsv_rows(view, order, r0, r1, a, k);
        });
  }
};

}  // namespace learnsolve
