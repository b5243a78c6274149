// Probe: the product with a vector, as the library has it, by tiles of several shapes, by masks and by
// cuSPARSE.
//
//   products [first letters of a case]
#ifdef __CUDACC__
#include <dlfcn.h>
#endif

#include <optional>

#include "tiles.cuh"

namespace probe {

template <class T>
LS_KERNEL(kThreads)
reference_kernel(int64_t n, const int* ptr, const int* idx, const T* a, const T* x, double* y, double* size) {
  for_items<1>(n, [&](const auto&, int64_t i) {
    double sum = 0, sizes = 0;
    for (int p = ptr[i]; p < ptr[i + 1]; ++p) {
      const double term = static_cast<double>(a[p]) * x[idx[p]];
      sum += term, sizes += fabs(term);
    }
    y[i] = sum, size[i] = sizes;
  });
}

// Long rows in pieces: pointers of all pieces, in which row or behind which the sum of each goes, and for
// each row that has been cut where its further ones stand.
struct Cut {
  std::vector<int> rows, target, cuts;
  int further = 0;
  explicit Cut(const Matrix& A) : rows{0} {
    const int n = static_cast<int>(A.n());
    for (int i = 0; i < n; ++i) {
      const int begin = A.rows[i], end = A.rows[i + 1], before = further;
      for (int p = begin; p == begin || p < end; p += kLongest) {
        rows.push_back(std::min(p + kLongest, end));
        target.push_back(p == begin ? i : n + further++);
      }
      if (further > before) cuts.insert(cuts.end(), {i, n + before, n + further});
    }
  }
};

#ifdef __CUDACC__
// As much of cuSPARSE as is asked here, from whichever library the process finds.
struct Cusparse {
  void *library = dlopen("libcusparse.so.12", RTLD_NOW), *handle = nullptr;
  int (*set_stream)(void*, cudaStream_t) = find<int(void*, cudaStream_t)>("cusparseSetStream");
  int (*csr)(void**, int64_t, int64_t, int64_t, void*, void*, void*, int, int, int, int) =
      find<int(void**, int64_t, int64_t, int64_t, void*, void*, void*, int, int, int, int)>(
          "cusparseCreateCsr");
  int (*vector)(void**, int64_t, void*, int) = find<int(void**, int64_t, void*, int)>("cusparseCreateDnVec");
  using Product = int(void*, int, const void*, void*, void*, const void*, void*, int, int, void*);
  Product *room = find<Product>("cusparseSpMV_bufferSize"), *run = find<Product>("cusparseSpMV"),
          *prepare = find<Product>("cusparseSpMV_preprocess");
  template <class F>
  F* find(const char* name) {
    return library ? reinterpret_cast<F*>(dlsym(library, name)) : nullptr;
  }
  Cusparse() {
    if (int (*create)(void**) = find<int(void**)>("cusparseCreate"); create && create(&handle) == 0)
      set_stream(handle, stream());
    if (!handle) std::printf("cuSPARSE is left out: libcusparse.so.12 is not found (LD_LIBRARY_PATH)\n");
  }
};

// One product with its descriptors and its room, to be repeated.
template <class T>
struct CusparseProduct {
  const Cusparse& lib;
  void *A = nullptr, *x = nullptr, *y = nullptr;
  T one = 1, zero = 0;
  int algorithm;
  std::optional<Buffer<char>> room;
  bool ready = false;
  static constexpr int kType = sizeof(T) == 4 ? 0 : 1;
  int call(Cusparse::Product* f, void* last) const {
    return f ? f(lib.handle, 0, &one, A, x, &zero, y, kType, algorithm, last) : 1;
  }
  CusparseProduct(const Cusparse& library, const Matrix& M, T* a, T* from, T* to, int algorithm_,
                  bool prepared)
      : lib(library), algorithm(algorithm_) {
    constexpr int kInt32 = 2;
    size_t bytes = 0;
    if (lib.csr(&A, M.n(), M.n(), M.nnz(), M.ptr.p, M.idx.p, a, kInt32, kInt32, 0, kType) != 0 ||
        lib.vector(&x, M.n(), from, kType) != 0 || lib.vector(&y, M.n(), to, kType) != 0 ||
        call(lib.room, &bytes) != 0)
      return;
    room.emplace(static_cast<int64_t>(bytes));
    ready = !prepared || call(lib.prepare, room->p) == 0;
  }
  bool operator()() const { return call(lib.run, room->p) == 0; }
};
#endif

template <class T>
struct Operands {
  Buffer<T> a, x, y;
  Operands(const Matrix& A, const Cut& cut, int seed) : a(A.nnz()), x(A.n()), y(A.n() + cut.further) {
    fill(a, 2 * seed), fill(x, 2 * seed + 1);
  }
};

template <class T>
void products(const Matrix& A, const Cut& cut, double rate) {
  const int bytes = sizeof(T);
  const char* const name = A.shape.name;
  std::vector<Operands<T>> sets;
  for (int s = 0; s < 3; ++s) sets.emplace_back(A, cut, s);
  Reference wanted(A.n());
  LS_LAUNCH(blocks_for(A.n(), kThreads), kThreads, stream(),
            (A.n(), A.ptr.p, A.idx.p, sets[0].a.p, sets[0].x.p, wanted.wanted.p, wanted.size.p),
            reference_kernel<T>);
  const double least = (A.nnz() * (bytes + 4.0) + 4.0 * A.n() + 2.0 * bytes * A.n()) / rate * 1e6;
  const auto row = [&](const char* variant, const auto& launch) {
    poison(sets[0].y.p, sets[0].y.n * bytes);
    measure(
        name, bytes, variant, least, [&](int i) { launch(sets[i % 3]); },
        [&] { return wanted.agrees(sets[0].y.p); });
  };

  const LibraryTiles library(A.rows);
  const Buffer<int> cut_ptr(cut.rows), target(cut.target), cuts(cut.cuts);
  Buffer<T> sums(library.count);
  row("now", [&](const Operands<T>& o) {
    RowPass<T, int> P{};
    P.rows = {A.ptr.p, nullptr, A.n(), A.nnz(), cut.further, library.of(A.ptr)};
    P.idx = A.idx.p, P.a = o.a.p, P.x = o.x.p, P.y = {o.y.p}, P.further = {sums.p}, P.k = 1;
    launch_row_pass<true, false>(P, stream());
  });
  const auto tiles = [&](const char* variant, int size, int each, const auto& launch) {
    const Buffer<int> first(tiles_of(cut.rows, size));
    row(variant, [&](const Operands<T>& o) {
      Tiles<T> P{};
      P.first = first.p, P.ptr = cut_ptr.p, P.idx = A.idx.p, P.target = cut.further ? target.p : nullptr;
      P.a = o.a.p, P.x = o.x.p, P.y = o.y.p, P.count = first.n - 1, P.each = each;
      launch(P);
      if (cut.further)
        LS_LAUNCH(blocks_for(cuts.n / 3, kThreads / 32), kThreads, stream(), (cuts.p, cuts.n / 3, o.y.p),
                  cut_rows_kernel<T>);
    });
  };
  using P = Tiles<T>;
  for_lanes(A.mean(), [&]<int L>() {
    tiles("tiles", 1984, 1, [](const P& p) { launch_tiles<1984, 8, L, true, kInOrder>(p); });
    tiles("tiles, 4 loads", 1984, 1, [](const P& p) { launch_tiles<1984, 4, L, true, kInOrder>(p); });
    tiles("tiles, 16 loads", 1984, 1, [](const P& p) { launch_tiles<1984, 16, L, true, kInOrder>(p); });
    tiles("tiles of 480", 480, 1, [](const P& p) { launch_tiles<480, 8, L, true, kInOrder>(p); });
    tiles("tiles of 992", 992, 1, [](const P& p) { launch_tiles<992, 8, L, true, kInOrder>(p); });
    tiles("tiles of 3968", 3968, 1, [](const P& p) { launch_tiles<3968, 8, L, true, kInOrder>(p); });
    tiles("tiles, 4 in a row", 1984, 4, [](const P& p) { launch_tiles<1984, 8, L, true, kInOrder>(p); });
    tiles("tiles, 16 in a row", 1984, 16, [](const P& p) { launch_tiles<1984, 8, L, true, kInOrder>(p); });
    tiles("tiles, plain loads", 1984, 1, [](const P& p) { launch_tiles<1984, 8, L, false, kInOrder>(p); });
    tiles("tiles, 16 bytes", 1984, 1, [](const P& p) {
      LS_LAUNCH(blocks_for(p.count), kThreads, stream(), (p), packed_tile_kernel<1984, L, T>);
    });
  });
  tiles("tiles, 1 lane", 1984, 1, [](const P& p) { launch_tiles<1984, 8, 1, true, kInOrder>(p); });
  tiles("tiles, 4 lanes", 1984, 1, [](const P& p) { launch_tiles<1984, 8, 4, true, kInOrder>(p); });
  tiles("tiles, 8 lanes", 1984, 1, [](const P& p) { launch_tiles<1984, 8, 8, true, kInOrder>(p); });
  tiles("tiles, 32 lanes", 1984, 1, [](const P& p) { launch_tiles<1984, 8, 32, true, kInOrder>(p); });
  for_places(A.shape, [&]<int D>() {
    const Buffer<int> diagonals(diagonals_of(A.shape));
    row("masks", [&](const Operands<T>& o) {
      const Masks<T> P{A.ptr.p, A.mask.p, diagonals.p, o.a.p, o.x.p, nullptr, o.y.p, nullptr, nullptr, A.n()};
      LS_LAUNCH(blocks_for(A.n(), kMaskRows<D>), kMaskRows<D>, stream(), (P), mask_kernel<D, T>);
    });
  });
#ifdef __CUDACC__
  static const Cusparse lib;
  struct Way {
    const char* variant;
    int algorithm;
    bool prepared;
  };
  for (const auto& [variant, algorithm, prepared] :
       {Way{"cuSPARSE", 0, false}, Way{"cuSPARSE prepared", 0, true}, Way{"cuSPARSE 2", 3, false},
        Way{"cuSPARSE 2 prepared", 3, true}}) {
    if (!lib.handle) break;
    std::vector<CusparseProduct<T>> made;
    made.reserve(3);
    for (auto& o : sets) made.emplace_back(lib, A, o.a.p, o.x.p, o.y.p, algorithm, prepared);
    if (!made[0].ready || !made[1].ready || !made[2].ready) {
      std::printf("%s is left out: refused\n", variant);
      continue;
    }
    row(variant, [&](const Operands<T>& o) { made[&o - sets.data()](); });
  }
#endif
}

}  // namespace probe

int main(int count, char** words) {
  probe::for_matrices(count > 1 ? words[1] : nullptr, [](const probe::Matrix& A, double rate) {
    const probe::Cut cut(A);
    probe::products<float>(A, cut, rate);
    probe::products<double>(A, cut, rate);
  });
}
