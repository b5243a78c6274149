// The bodies of the CUDA kernels for conjugate gradients: passes over chunks and their sums, in both orders
// of the lanes; the persistent kernel against a row of launches, bit by bit; the sums of pairs.
#include "kernels/pcg_adjoint.cuh"
#include "kernels/pcg_loop.cuh"
#include "kernels/sddmm_pairs.cuh"
#include "tests/cases.h"
#include "tests/device_blocks.h"

namespace learnsolve::test {
namespace {

using namespace cuda;

// Small integers: every order of a sum gives the same bits.
template <class T>
Array<T> integers(Random& random, int64_t n) {
  Array<T> a(n);
  std::uniform_int_distribution<int> draw(-4, 4);
  for (int64_t i = 0; i < n; ++i) a[i] = static_cast<T>(draw(random));
  return a;
}

template <class T>
void require_equal(const Array<T>& a, const Array<T>& b, const std::string& what) {
  require(a.size() == b.size(), what + ": sizes differ");
  for (int64_t i = 0; i < a.size(); ++i)
    require(a[i] == b[i], what + ": entry " + std::to_string(i) + " is " + std::to_string(a[i]) + ", not " +
                              std::to_string(b[i]));
}

template <class T, class F>
void with_columns(int64_t k, const F& f) {
  if (k == 1)
    f.template operator()<true, kPack<T>>();
  else if (k % kPack<T> == 0)
    f.template operator()<false, kPack<T>>();
  else
    f.template operator()<false, 1>();
}

template <class T, class F>
void with_products(int64_t k, const F& f) {
  if (k == 1)
    f.template operator()<2, 1>();
  else if (k % kPack<T> == 0)
    f.template operator()<0, kPack<T>>();
  else
    f.template operator()<0, 1>();
}

template <class T>
void passes(Random& random, int64_t n, int64_t k) {
  const Chunks chunks(n);
  const std::string what = "pass over " + std::to_string(n) + " x " + std::to_string(k);
  const Array<T> u = integers<T>(random, n * k), w = integers<T>(random, n * k);
  Array<T> wanted(k);
  for (int64_t i = 0; i < n * k; ++i) wanted[i % k] += u[i] * w[i];
  for (const bool backwards : {false, true}) {
    Array<T> partials = unwritten<T>(chunks.count * k), found(k);
    PassScratch<T, 2> scratch;
    const HostTeam<cuda::kThreads> team{backwards};
    with_columns<T>(k, [&]<bool One, int V>() {
      for (int64_t c = 0; c < chunks.count; ++c)
        pass_chunk<One, V>(team, PcgDotPass<T>{u.data(), w.data(), true}, chunks.begin(c), chunks.end(c), k,
                           false, Partials<T>{{partials.data(), nullptr}}, c, scratch);
    });
    for (int64_t i = 0; i < chunks.count * k; ++i) found[i % k] += partials[i];
    require_equal(found, wanted, what);
    // What the judge adds up.
    for (int64_t c0 = 0; c0 < k; c0 += columns_together(k)) {
      double totals[cuda::kThreads];
      add_chunks(team, partials.data(), chunks.count, k, c0, columns_together(k), totals);
      for (int64_t c = c0; c < std::min<int64_t>(c0 + columns_together(k), k); ++c)
        require(totals[c - c0] == static_cast<double>(wanted[c]), what + ": total");
    }
  }
}

template <int Lanes, int V, class T, class I>
void product(Random& random, const Structure<I>& A, int64_t k) {
  const int64_t n = A.rows;
  const Chunks chunks(n);
  const Array<T> a = integers<T>(random, A.nnz()), x = integers<T>(random, A.cols * k),
                 u = integers<T>(random, n * k);
  Array<T> y(n * k), dot(k);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t c = 0; c < k; ++c) {
      for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p) y[i * k + c] += a[p] * x[A.idx[p] * k + c];
      dot[c] += u[i * k + c] * y[i * k + c];
    }
  for (const bool backwards : {false, true}) {
    Array<T> found = unwritten<T>(n * k), partials = unwritten<T>(chunks.count * k), sums(k);
    PassScratch<T, 1> scratch;
    for (int64_t c = 0; c < chunks.count; ++c)
      product_chunk<Lanes, V>(HostTeam<cuda::kThreads>{backwards},
                              RowsOf<T, I>{A.ptr.data(), A.idx.data(), a.data()}, x.data(),
                              PcgProductPass<T, 1>{u.data(), found.data(), true}, chunks.begin(c),
                              chunks.end(c), k, false, Partials<T>{{partials.data(), nullptr}}, c, scratch);
    for (int64_t i = 0; i < chunks.count * k; ++i) sums[i % k] += partials[i];
    require_equal(found, y, "product");
    require_equal(sums, dot, "product and sum");
  }
}

// A system, and all that the iterations write.
template <class T, class I>
struct System {
  const Structure<I> A, At;
  const int64_t n, k, batch, iterations;
  const Preconditioning kind;
  const Chunks chunks{n};
  Array<T> values, m, mt, b;
  Array<T> residuals, directions;
  Array<T> x = rows_of(n), r = x, p = x, before = x, q = x, z = x, w = x, sums = rows_of(3 * chunks.count),
           carry = rows_of(kCarry), work = rows_of(kWork), norms = rows_of(iterations + 1),
           scalars = rows_of(iterations * kScalars);
  Array<int> flags{2 * batch};
  PcgForward<T> P{};

  Array<T> rows_of(int64_t rows) const { return Array<T>(batch * rows * k); }

  System(Random& random, const Structure<I>& A_, int64_t k_, int64_t batch_, int64_t iterations_,
         Preconditioning kind_, bool store)
      : A(A_),
        At(transposed(A_, 48)),
        n(A_.rows),
        k(k_),
        batch(batch_),
        iterations(iterations_),
        kind(kind_),
        values(A_.nnz()),
        m(kind_ == Preconditioning::diagonal ? A_.rows : A_.nnz()),
        mt(A_.nnz()),
        b(uniform<T>(random, batch_ * A_.rows * k_)),
        residuals(rows_of(store ? iterations * n : 0)),
        directions(residuals) {
    for (int64_t i = 0; i < n; ++i)
      for (int64_t e = A.ptr[i]; e < A.ptr[i + 1]; ++e) {
        values[e] = A.idx[e] == i ? T(8) : T(-1);
        if (kind == Preconditioning::product) m[e] = A.idx[e] == i ? T(1) : T(0.0625) * (A.idx[e] % 3);
      }
    if (kind == Preconditioning::diagonal)
      for (int64_t i = 0; i < n; ++i) m[i] = T(1) / (1 + i % 3);
    else
      for (int64_t e = 0; e < A.nnz(); ++e) mt[e] = m[At.perm[e]];
    P.kind = kind, P.m = m.data(), P.n = P.width = n, P.k = k, P.batch = batch;
    P.iterations = iterations, P.begins = true, P.store = store;
    P.x = x.data(), P.last_r = r.data(), P.last_p = p.data(), P.spare = before.data();
    P.slots_r = residuals.data(), P.slots_p = directions.data();
    P.q = q.data(), P.z = z.data(), P.w = w.data();
    for (int i = 0; i < 3; ++i) P.sums[i] = sums.data() + i * batch * chunks.count * k;
    P.columns = {carry.data(), work.data(), flags.data(), k};
    P.norms = norms.data(), P.scalars = scalars.data();
  }
  RowsOf<T, I> rows(const Array<T>& by) const { return {A.ptr.data(), A.idx.data(), by.data()}; }
  RowsOf<T, I> columns() const { return {At.ptr.data(), At.idx.data(), mt.data()}; }

  void judge(Judged what, int64_t i, const Partials<T>& partials) {
    judge_kernel<T>(P.judge(P.columns, what, i, true), batch, chunks.count, partials);
  }
  template <class Make>
  void pass(const Make& make, const Partials<T>& partials) {
    with_columns<T>(k, [&]<bool One, int V>() {
      chunk_pass_kernel<One, V, T, Make>(make, chunks, batch, k, false, partials);
    });
  }
  template <int Sums>
  void multiply(const RowsOf<T, I>& by, const Vectors<const T>& from, const Vectors<const T>& u, T* to,
                const int* running, const Partials<T>& partials) {
    const MakeProduct<T, I, Sums> make{by, 0, from, u, {to, n * k}, running};
    with_products<T>(k, [&]<int Lanes, int V>() {
      chunk_product_kernel<Lanes, V, T, MakeProduct<T, I, Sums>>(make, chunks, batch, k, false, partials);
    });
  }
  Vectors<const T> at(T* v, int64_t i) const {
    return {v, P.store && i < iterations ? iterations * n * k : n * k};
  }
  void precondition(int64_t i) {
    if (kind != Preconditioning::product) return;
    const Vectors<const T> from = at(P.r_at(0, i + 1), i + 1);
    multiply<0>(columns(), from, {}, P.w, P.columns.flags + 1, {});
    multiply<1>(rows(m), {P.w, n * k}, from, P.z, P.columns.flags + 1, P.of_preconditioned());
    judge(Judged::preconditioned, i, P.of_preconditioned());
  }
  void residual(int64_t i) {
    if (kind == Preconditioning::diagonal) {
      i < 0 ? pass(MakeBegin<T, true>{P, b.data(), false}, P.of_residual())
            : pass(MakeResidual<T, true>{P, i}, P.of_residual());
    } else {
      i < 0 ? pass(MakeBegin<T, false>{P, b.data(), false}, P.of_residual())
            : pass(MakeResidual<T, false>{P, i}, P.of_residual());
    }
    judge(i < 0 ? Judged::begin : Judged::residual, i, P.of_residual());
    precondition(i);
    pass(MakeUpdate<T>{P, i}, {});
  }
  void by_launches() {
    for (int64_t i = 0; i < iterations; ++i) {
      const Vectors<const T> from = at(P.p_at(0, i), i);
      multiply<1>(rows(values), from, from, P.q, P.columns.flags, P.curvature());
      judge(Judged::product, i, P.curvature());
      residual(i);
    }
  }
  void by_one_kernel(int64_t blocks) {
    const PcgLoop<T, I> loop{P, rows(values), rows(m), columns(), 0, chunks, chunks};
    on_blocks(blocks, [&] {
      with_products<T>(k, [&]<int Lanes, int V>() { pcg_loop_kernel<Lanes, V, T, I>(loop); });
    });
  }
};

template <class T, class I>
void forms(const Structure<I>& A, int64_t k, int64_t batch, int64_t iterations, Preconditioning kind,
           bool store, int64_t blocks) {
  Random random(5), again(5);
  System<T, I> one(random, A, k, batch, iterations, kind, store),
      two(again, A, k, batch, iterations, kind, store);
  one.residual(-1), two.residual(-1);
  one.by_launches(), two.by_one_kernel(blocks);
  const std::string what = "both forms of the loop";
  using S = System<T, I>;
  for (const auto of :
       {&S::x, &S::r, &S::p, &S::before, &S::carry, &S::norms, &S::scalars, &S::residuals, &S::directions})
    require_equal(one.*of, two.*of, what);
  // Whatever the form: the last norm is that of b - A x.
  for (int64_t s = 0; s < batch; ++s)
    for (int64_t c = 0; c < k; ++c) {
      long double squares = 0;
      for (int64_t i = 0; i < A.rows; ++i) {
        const int64_t o = s * A.rows * k + c;
        long double rest = one.b[o + i * k];
        for (int64_t e = A.ptr[i]; e < A.ptr[i + 1]; ++e)
          rest -= static_cast<long double>(one.values[e]) * one.x[o + A.idx[e] * k];
        squares += rest * rest;
      }
      const int64_t at = s * (iterations + 1) * k + c;
      const long double first = one.norms[at], last = one.norms[at + iterations * k];
      require(std::fabs(std::sqrt(squares) - last) <= 100 * std::numeric_limits<T>::epsilon() * first,
              "the norm of the residual");
      require(iterations < 8 || last < first / 100, "the residual becomes smaller");
    }
}

template <class T, class I>
void pairs(Random& random, const Structure<I>& A, int64_t k, bool shared) {
  const int64_t batch = 2, nnz = A.nnz();
  Array<I> row(nnz);
  rows_of_entries_kernel<I>(A.ptr.data(), A.rows, row.data());
  const Array<T> u = integers<T>(random, batch * A.rows * k), v = integers<T>(random, batch * A.cols * k);
  Array<T> out = integers<T>(random, shared ? nnz : batch * nnz), wanted = out;
  for (int64_t s = 0; s < batch; ++s)
    for (int64_t i = 0; i < A.rows; ++i)
      for (int64_t e = A.ptr[i]; e < A.ptr[i + 1]; ++e)
        for (int64_t c = 0; c < k; ++c)
          wanted[(shared ? 0 : s * nnz) + e] +=
              3 * u[(s * A.rows + i) * k + c] * v[(s * A.cols + A.idx[e]) * k + c];
  EntryPairs<T, I> sums{row.data(), A.idx.data(), nnz, k, batch, shared ? 0 : nnz, out.data(), {}, {}, 3};
  for (int j = 0; j < 3; ++j) sums.u[j] = {u.data(), A.rows * k}, sums.v[j] = {v.data(), A.cols * k};
  k == 1 ? entry_pairs_kernel<1, T, I>(sums) : entry_pairs_kernel<8, T, I>(sums);
  require_equal(out, wanted, "sums of pairs");
}

template <class T, class I>
void bodies() {
  Random random(3);
  for (const int64_t n : {0, 1, 127, 300})
    for (const int64_t k : {1, 3, 8, 70}) passes<T>(random, n, k);
  const Structure<I> A = structure<I>(grid(20, 15, 1, 1), 48),
                     W = structure<I>(scattered(random, 40, 53, 0.3), 48);
  for (const Structure<I>* S : {&A, &W}) {
    product<2, 1, T, I>(random, *S, 1);
    product<8, 1, T, I>(random, *S, 1);
    product<0, kPack<T>, T, I>(random, *S, 8);
    product<0, 1, T, I>(random, *S, 3);
    for (const int64_t k : {1, 5}) pairs<T, I>(random, *S, k, true), pairs<T, I>(random, *S, k, false);
  }
}

template <class T, class I>
void all() {
  if (!test::kThreads) bodies<T, I>();
  const Structure<I> A = structure<I>(grid(20, 15, 1, 1), 48);
  for (const auto kind : {Preconditioning::none, Preconditioning::diagonal, Preconditioning::product})
    for (const bool store : {false, true}) {
      forms<T, I>(A, 1, 1, 9, kind, store, 2);
      forms<T, I>(A, 3, 2, 3, kind, store, 5);
      if (!test::kThreads) forms<T, I>(A, 4, 1, 40, kind, store, 3);  // they stop on the way
    }
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(device_pcg) {
  learnsolve::test::all<double, int32_t>();
  learnsolve::test::all<float, int64_t>();
}
