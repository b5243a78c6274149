// Probe: both gradients of the product with a vector, d_p = g_i x_j and y = A^T g, as the library has them
// (two passes), by tiles with w_p = a_p g_i handed on or without it, and by masks.
#include <numeric>

#include "tiles.cuh"

namespace probe {

// The transposed structure, on the host: perm holds the place of each entry.
struct Transposed {
  std::vector<int> rows;
  Buffer<int> ptr, idx, perm;
  explicit Transposed(const Matrix& A) : rows(A.n() + 1), ptr(A.n() + 1), idx(A.nnz()), perm(A.nnz()) {
    const std::vector<int> columns = A.idx.host();
    std::vector<int> of(A.nnz()), place(A.nnz());
    for (int c : columns) ++rows[c + 1];
    std::partial_sum(rows.begin(), rows.end(), rows.begin());
    std::vector<int> at(rows.begin(), rows.end() - 1);
    for (int i = 0; i < A.n(); ++i)
      for (int p = A.rows[i]; p < A.rows[i + 1]; ++p) {
        const int q = at[columns[p]]++;
        of[q] = i, place[q] = p;
      }
    copy(ptr.p, rows.data(), rows.size() * sizeof(int));
    copy(idx.p, of.data(), of.size() * sizeof(int));
    copy(perm.p, place.data(), place.size() * sizeof(int));
  }
};

// By rows of both structures: d in place, as its own reference, and y.
template <class T>
LS_KERNEL(kThreads)
wanted_kernel(int64_t n, const int* ptr, const int* idx, const int* perm, const T* a, const T* g, double* y,
              double* size) {
  for_items<1>(n, [&](const auto&, int64_t j) {
    double sum = 0, sizes = 0;
    for (int q = ptr[j]; q < ptr[j + 1]; ++q) {
      const double term =
          perm ? static_cast<double>(a[perm[q]]) * g[idx[q]] : static_cast<double>(a[j]) * g[idx[q]];
      sum += term, sizes += fabs(term);
      if (!perm) y[q] = term, size[q] = fabs(term);
    }
    if (perm) y[j] = sum, size[j] = sizes;
  });
}

template <class T>
struct Operands {
  Buffer<T> a, x, g, d, y;
  Operands(const Matrix& A, int seed) : a(A.nnz()), x(A.n()), g(A.n()), d(A.nnz()), y(A.n()) {
    fill(a, 3 * seed), fill(x, 3 * seed + 1), fill(g, 3 * seed + 2);
  }
};

template <class T>
void gradients(const Matrix& A, const Transposed& B, double rate) {
  const int bytes = sizeof(T);
  std::vector<Operands<T>> sets;
  for (int s = 0; s < 2; ++s) sets.emplace_back(A, s);
  const unsigned blocks = blocks_for(A.n(), kThreads);
  const Reference y(A.n()), d(A.nnz());
  LS_LAUNCH(blocks, kThreads, stream(),
            (A.n(), B.ptr.p, B.idx.p, B.perm.p, sets[0].a.p, sets[0].g.p, y.wanted.p, y.size.p),
            wanted_kernel<T>);
  LS_LAUNCH(blocks, kThreads, stream(),
            (A.n(), A.ptr.p, A.idx.p, nullptr, sets[0].g.p, sets[0].x.p, d.wanted.p, d.size.p),
            wanted_kernel<T>);
  // Every entry's index, value and gradient, and four vectors with the pointers.
  const double least = (A.nnz() * (2.0 * bytes + 4) + A.n() * (3.0 * bytes + 4)) / rate * 1e6;
  Buffer<T> w(A.shape.points ? A.n() * A.shape.points : A.nnz());
  const auto row = [&](const char* variant, int results, const auto& launch) {
    poison(sets[0].y.p, A.n() * bytes), poison(sets[0].d.p, A.nnz() * bytes), poison(w.p, w.n * bytes);
    measure(
        A.shape.name, bytes, variant, results == 3 ? least : NAN, [&](int i) { launch(sets[i % 2]); },
        [&] {
          return (!(results & 1) || d.agrees(sets[0].d.p)) && (!(results & 2) || y.agrees(sets[0].y.p));
        });
  };
  const LibraryTiles rows(A.rows), columns(B.rows);
  const auto values_now = [&](const Operands<T>& o) {
    RowPass<T, int> P{};
    P.rows = {A.ptr.p, nullptr, A.n(), A.nnz(), 0, rows.of(A.ptr)};
    P.idx = A.idx.p, P.x = o.x.p, P.u = o.g.p, P.d = {o.d.p}, P.k = 1;
    launch_row_pass<false, true>(P, stream());
  };
  const auto vector_now = [&](const Operands<T>& o) {
    RowPass<T, int> P{};
    P.rows = {B.ptr.p, nullptr, A.n(), A.nnz(), 0, columns.of(B.ptr)};
    P.idx = B.idx.p, P.perm = B.perm.p, P.a = o.a.p, P.x = o.g.p, P.y = {o.y.p}, P.k = 1;
    launch_row_pass<true, false>(P, stream());
  };
  row("now", 3, [&](const Operands<T>& o) { values_now(o), vector_now(o); });
  row("now, values alone", 1, values_now);
  row("now, vector alone", 2, vector_now);

  const Buffer<int> first(tiles_of(A.rows, 1984)), first_column(tiles_of(B.rows, 1984));
  const auto by_rows = [&]<bool W>(const Operands<T>& o) {
    Tiles<T> P{};
    P.first = first.p, P.ptr = A.ptr.p, P.idx = A.idx.p, P.a = o.a.p, P.x = o.x.p, P.g = o.g.p;
    P.d = o.d.p, P.w = w.p, P.count = first.n - 1, P.each = 1;
    LS_LAUNCH(blocks_for(P.count), kThreads, stream(), (P), tile_gradients_kernel<1984, 8, W, T>);
  };
  const auto by_columns = [&]<int What>(const Operands<T>& o) {
    Tiles<T> P{};
    P.first = first_column.p, P.ptr = B.ptr.p, P.idx = B.idx.p, P.perm = B.perm.p, P.a = o.a.p;
    P.x = What == kPlain ? w.p : o.g.p, P.y = o.y.p, P.count = first_column.n - 1, P.each = 1;
    for_lanes(A.mean(), [&]<int L>() { launch_tiles<1984, 8, L, true, What>(P); });
  };
  const auto handing = [&](const Operands<T>& o) { by_rows.template operator()<true>(o); };
  const auto values = [&](const Operands<T>& o) { by_rows.template operator()<false>(o); };
  const auto gathered = [&](const Operands<T>& o) { by_columns.template operator()<kPlain>(o); };
  const auto moved = [&](const Operands<T>& o) { by_columns.template operator()<kMoved>(o); };
  row("tiles, w handed on", 3, [&](const Operands<T>& o) { handing(o), gathered(o); });
  row("tiles, no w", 3, [&](const Operands<T>& o) { values(o), moved(o); });
  row("tiles, values and w", 1, handing);
  row("tiles, values alone", 1, values);
  row("tiles, vector alone", 2, moved);
  for_places(A.shape, [&]<int D>() {
    const Buffer<int> diagonals(diagonals_of(A.shape));
    const auto pass = [&](const Operands<T>& o) {
      return Masks<T>{A.ptr.p, A.mask.p, diagonals.p, o.a.p, o.x.p, o.g.p, o.y.p, o.d.p, w.p, A.n()};
    };
    const auto one = [&](const Operands<T>& o) {
      LS_LAUNCH(blocks_for(A.n(), kMaskRows<D>), kMaskRows<D>, stream(), (pass(o)),
                mask_gradients_kernel<D, T>);
    };
    row("masks", 3, [&](const Operands<T>& o) {
      one(o);
      LS_LAUNCH(blocks, kThreads, stream(), (pass(o)), shifted_sums_kernel<D, T>);
    });
    row("masks, values and w", 1, one);
  });
}

}  // namespace probe

int main(int count, char** words) {
  probe::for_matrices(count > 1 ? words[1] : nullptr, [](const probe::Matrix& A, double rate) {
    if (A.shape.kind == probe::kPower) return;  // rows in pieces are not made here
    const probe::Transposed B(A);
    probe::gradients<float>(A, B, rate);
    probe::gradients<double>(A, B, rate);
  });
}
