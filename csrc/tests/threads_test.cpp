// Kernels on two threads, for ThreadSanitizer: each with one half of its blocks, to the bits of one thread
// with all of them. What the numbers are is tested in Python.
#include <cstring>
#include <thread>

#include "analysis/factors.h"
#include "analysis/levels.h"
#include "analysis/sparse_products.h"
#include "kernels/complex_products.h"
#include "kernels/factors.h"
#include "kernels/pcg.h"
#include "kernels/perceptron.h"
#include "kernels/pointwise.h"
#include "kernels/products.h"
#include "kernels/segment.h"
#include "kernels/sparse_products.h"
#include "kernels/stencil.h"
#include "kernels/sweeps.h"
#include "kernels/triangular.h"
#include "ops/buffers.h"
#include "ops/contention.h"
#include "tests/matrix.h"

namespace learnsolve::test {
namespace {

namespace isa = learnsolve::LEARNSOLVE_ISA;

template <class F>
void on_two(int64_t n, const F& f) {
  std::thread other([&] { f(n / 2, n); });
  f(0, n / 2);
  other.join();
}

constexpr int64_t kSize = 20'000;  // numbers in each array that kernels write

template <class T>
std::vector<T> numbers() {
  std::vector<T> a(8 * kSize);
  for (int64_t i = 0; i < 8 * kSize; ++i) a[i] = static_cast<T>(i * 37 % 101 - 50.5) / 64;
  return a;
}

// f(begin, end, o) writes to the first `outputs` arrays o[0], o[1], ..., which hold numbers already.
template <class T, class F>
void compare(const std::string& name, int64_t n, int64_t outputs, const F& f) {
  static const std::vector<T> start = numbers<T>();
  std::vector<T> whole = start, halves = start;
  const auto run = [&](std::vector<T>& to, int64_t begin, int64_t end) {
    T* o[8];
    for (int64_t i = 0; i < 8; ++i) o[i] = &to[i * kSize];
    f(begin, end, o);
  };
  run(whole, 0, n);
  on_two(n, [&](int64_t begin, int64_t end) { run(halves, begin, end); });
  for (int64_t o = 0; o < outputs; ++o)
    require(std::memcmp(&whole[o * kSize], &start[o * kSize], kSize * sizeof(T)) != 0,
            name + ": not written");
  require(std::memcmp(&whole[0], &halves[0], 8 * kSize * sizeof(T)) == 0, name + ": other bits");
}

template <class T, class I>
struct Kernels {
  const Matrix<I>& A;
  const int64_t n = A.n, nnz = A.ptr[n];
  const std::vector<I> blocks = analysis::row_blocks<I>(A.ptr.data(), n, A.idx.data(), nullptr, 48),
                       tblocks = analysis::row_blocks<I>(A.tptr.data(), n, A.tidx.data(), A.perm.data(), 48);
  const std::vector<T> values = dominant(), some = numbers<T>();
  const T *const v = values.data(), *const x = some.data(), *const y = x + 11, *const z = x + 23;
  const CsrView<T, I> rows{A.ptr.data(), A.idx.data(), nullptr, v},
      columns{A.tptr.data(), A.tidx.data(), A.perm.data(), v};
  const RowBlocks<I> table{blocks.data()}, ttable{tblocks.data()};
  const int64_t count = static_cast<int64_t>(blocks.size()) / 2 - 1,
                tcount = static_cast<int64_t>(tblocks.size()) / 2 - 1;

  std::vector<T> dominant() const {
    std::vector<T> a = numbers<T>();
    for (const I p : A.diagonal) a[p] = 20;
    return a;
  }

  void products(int64_t k) const {
    compare<T>("products by rows", count, 4, [&](int64_t b0, int64_t b1, T** o) {
      const T* const u[] = {x, y};
      isa::spmm<T, I>(rows, table, b0, b1, x, k, o[0], false);
      isa::sddmm<T, I>(rows.ptr, rows.idx, table, b0, b1, x, y, k, o[1], false);
      isa::sddmm_pairs<T, I>(rows.ptr, rows.idx, table, b0, b1, u, u, 2, k, o[2]);
      isa::spmm_dot<T, I>(rows, table, b0, b1, x, y, k, o[3], o[4]);
    });
    compare<T>("spmm_backward", tcount, 2, [&](int64_t b0, int64_t b1, T** o) {
      isa::spmm_backward<T, I>(columns, ttable, b0, b1, x, y, k, o[0], o[1], false, false);
    });
    compare<T>("scatter_backward", n, 1, [&](int64_t r0, int64_t r1, T** o) {
      isa::scatter_backward<T, I>(rows, r0, r1, x, y, nullptr, o[0]);
    });
    compare<T>("complex products", count, 2, [&](int64_t b0, int64_t b1, T** o) {
      isa::complex_spmm<T, I>(rows, table, b0, b1, x, k, o[0], false, true);
      isa::complex_sddmm<T, I>(rows.ptr, rows.idx, table, b0, b1, x, y, k, o[1], true, 1);
    });
  }

  void loops(int64_t k) const {
    compare<T>("pcg", count, 7, [&](int64_t b0, int64_t b1, T** o) {
      isa::pcg_residual<T, I>(table, b0, b1, {x, x, y, z, o[0], o[1], o[2]}, k);
      isa::pcg_update<T, I>(table, b0, b1, {x, y, z, x, y, z, o[3], o[4]}, k);
      isa::pcg_combine<T, I>(table, b0, b1, {x, y, z, x, o[5]}, k);
      isa::pcg_dot<T, I>(table, b0, b1, {x, y, o[6]}, k);
    });
    compare<T>("pcg_adjoint_residual", count, 3, [&](int64_t b0, int64_t b1, T** o) {
      isa::pcg_adjoint_residual<T, I>(table, b0, b1, {x, y, z, x, nullptr, y, z, x, y, z, o[0], o[1], o[2]},
                                      k);
    });
    compare<T>("pcg_adjoint_direction", tcount, 2, [&](int64_t b0, int64_t b1, T** o) {
      isa::pcg_adjoint_direction<T, I>(columns, ttable, b0, b1, {x, y, z, x, y, z, x, y, o[0], o[1]}, k,
                                       nullptr, nullptr);
    });
    compare<T>("richardson", count, 7, [&](int64_t b0, int64_t b1, T** o) {
      isa::richardson_sweep<T, I>(rows, table, b0, b1, {x, y, z, x, T(0.5), o[0], o[1]}, k);
      isa::richardson_adjoint<T, I>(table, b0, b1,
                                    {x, y, z, x, y, o[2], o[3], o[4], T(0.5), T(0.25), o[5], z, o[6]}, k);
    });
  }

  void segments(int64_t k) const {
    const CsrView<T, I> entries{columns.ptr, columns.idx, columns.perm, x};
    compare<T>("segments", tcount, 4, [&](int64_t b0, int64_t b1, T** o) {
      I* const at = reinterpret_cast<I*>(o[1]);
      isa::segment_max<T, I>(entries, ttable, b0, b1, nnz * k, k, o[0], at);
      isa::segment_place<T, I>(entries, ttable, b0, b1, k, at, y, o[2]);
      isa::segment_softmax<T, I>(entries, ttable, b0, b1, nnz * k, k, o[3]);
      isa::segment_softmax_backward<T, I>(entries, ttable, b0, b1, nnz * k, k, y, o[4]);
    });
  }

  // Level after level, by rows, and by columns of the right-hand side.
  void triangles(int64_t k) const {
    const auto t = analysis::triangle<I>(rows.ptr, n, rows.idx, nullptr, false,
                                         analysis::triangle_rows<I>(rows.ptr, n, rows.idx, false, 0));
    const auto runs = analysis::triangle_blocks<I>(t.ptr.data(), n, t.idx.data(), t.perm.data());
    const CsrView<T, I> lower{t.ptr.data(), t.idx.data(), t.perm.data(), v};
    const TriangleView<T, I> L{lower, runs.data(), int64_t(runs.size()) / 3 - 1, n, false, false};
    TriangleView<T, I> in_order = L;
    in_order.A.perm = nullptr;
    const auto schedule = analysis::level_schedule<I>(rows.ptr, n, rows.idx, false);
    for (size_t l = 0; l + 1 < schedule.levels.size(); ++l) {
      const int64_t first = schedule.levels[l];
      compare<T>("sptrsv_rows", schedule.levels[l + 1] - first, 1, [&](int64_t r0, int64_t r1, T** o) {
        isa::sptrsv_rows<T, I>(L, schedule.order.data(), first + r0, first + r1, x, o[0], k);
      });
      compare<T>("scaled_sptrsv_rows", schedule.levels[l + 1] - first, 2, [&](int64_t r0, int64_t r1, T** o) {
        isa::scaled_sptrsv_rows<T, I>(in_order, schedule.order.data(), first + r0, first + r1,
                                      {x, o[0], y, v, o[1]}, k);
      });
    }
    compare<T>("scaled_sptrsv", k, 2, [&](int64_t c0, int64_t c1, T** o) {
      if (c0 < c1) isa::scaled_sptrsv<T, I>(in_order, {x, o[0], y, v, o[1]}, k, c0, c1);
    });
    compare<T>("sptrsv", k, 1, [&](int64_t c0, int64_t c1, T** o) {
      if (c0 < c1) isa::sptrsv<T, I>(L, x, o[0], k, c0, c1);
    });
    compare<T>("sptrsv_gradient", n, 1, [&](int64_t r0, int64_t r1, T** o) {
      isa::sptrsv_gradient<T, I>(L, r0, r1, x, y, k, o[0], true);
    });
  }

  // Of two members of a batch.
  void factors() const {
    const auto plan =
        analysis::elimination_plan<I>(rows.ptr, n, rows.idx, A.diagonal.data(), analysis::Factors::lu, n);
    const Elimination<I> E{plan.steps,
                           plan.order.data(),
                           plan.source.data(),
                           plan.pivot.data(),
                           plan.ptr.data(),
                           plan.pairs.data(),
                           false};
    compare<T>("factors", 2, 2, [&](int64_t m0, int64_t m1, T** o) {
      for (int64_t m = m0; m < m1; ++m) isa::incomplete_factor<T, I>(E, v, o[m]);
    });
  }

  // A A, planned by two threads.
  void sparse_products() const {
    const int64_t products = analysis::count_products(rows.idx, nnz, rows.ptr);
    std::vector<I> c_ptr(n + 1);
    std::vector<int32_t> positions(products), starts(nnz);
    std::vector<uint8_t> repeated(n);
    analysis::Growing<I> c_idx;
    analysis::product_pattern(rows.ptr, n, rows.idx, rows.ptr, n, rows.idx, n, c_ptr.data(), c_idx,
                              int64_t{1} << 30, 2);
    analysis::positions_of_products(rows.ptr, n, rows.idx, rows.ptr, n, rows.idx, n, c_ptr.data(),
                                    c_idx.data(), positions.data(), repeated.data(), 2);
    analysis::product_starts(rows.idx, nnz, rows.ptr, columns.perm, starts.data());
    const auto by_rows =
        analysis::row_product_blocks(rows.ptr, n, rows.idx, rows.ptr, c_ptr.data(), repeated.data(), 100);
    const auto by_columns = analysis::column_product_blocks(columns.ptr, n, columns.perm, rows.ptr,
                                                            positions.data(), starts.data(), 100);
    const auto view = [&](const CsrView<T, I>& S) {
      return ProductView<I>{S.ptr,        S.idx,        S.perm,           rows.ptr,      rows.idx,
                            c_ptr.data(), c_idx.data(), positions.data(), starts.data(), false};
    };
    compare<T>("spgemm by rows", int64_t(by_rows.size()) / 3 - 1, 2, [&](int64_t b0, int64_t b1, T** o) {
      std::vector<I> marker(n, -1);
      for (const int64_t* k = &by_rows[3 * b0]; k < &by_rows[3 * b1]; k += 3) {
        isa::spgemm_rows<T, I>(view(rows), k[0], k[3], k[1], k[2] != 0, x, y, o[0], marker.data(), false);
        isa::spgemm_left<T, I>(view(rows), k[0], k[3], k[1], x, y, o[1], marker.data(), false);
      }
    });
    compare<T>("spgemm by columns", int64_t(by_columns.size()) / 3 - 1, 2,
               [&](int64_t b0, int64_t b1, T** o) {
                 for (const int64_t* k = &by_columns[3 * b0]; k < &by_columns[3 * b1]; k += 3)
                   isa::spgemm_columns<T, I>(view(columns), k[0], k[3], k[2] != 0, x, y, z, o[0], o[1], false,
                                             false);
               });
  }

  // For a matrix of more entries than a chunk.
  void sums() const {
    const auto u = analysis::merge_patterns(rows.ptr, rows.idx, rows.ptr, rows.idx, n);
    const I* const starts = u.starts.data();
    compare<T>("add", union_chunks(nnz), 3, [&](int64_t c0, int64_t c1, T** o) {
      isa::add<T, I>(u.codes.data(), starts, c0, c1, nnz, x, nnz, y, nnz, T(2), T(3), o[0]);
      isa::add_backward<T, I>(u.codes.data(), starts, c0, c1, nnz, x, T(2), T(3), o[1], o[2]);
    });
  }

  void perceptrons() const {
    constexpr int64_t width = filled_up<T>(5);
    const PerceptronView<T> M{3, 5, 2, width, width, width, x, y, z, x, y, z, true};
    const PerceptronRows<T, I> of{x, y, rows.idx, rows.idx};
    compare<T>("perceptrons", n, 3, [&](int64_t r0, int64_t r1, T** o) {
      std::vector<T> work(isa::kTileRows * 5 * width), sums(9 * width);
      isa::perceptron<T, I>(M, of, r0, r1, work.data(), o[0]);
      isa::perceptron_backward<T, I>(M, of, r0, r1, x, work.data(), o[1], o[2], sums.data());
    });
  }

  // A factor on the lower triangle, for a network of one layer.
  void pointwise() const {
    constexpr int64_t lower = 2, features = 2 * lower + 2, width = filled_up<T>(lower + 2);
    std::vector<I> ptr{0}, idx;
    for (int64_t i = 0; i < n; ++i) {
      for (I p = A.ptr[i]; p <= A.diagonal[i]; ++p) idx.push_back(A.idx[p]);
      ptr.push_back(static_cast<I>(idx.size()));
    }
    const LayerView<T> layer{x, y, features, width};
    compare<T>("pointwise", n, 2, [&](int64_t r0, int64_t r1, T** o) {
      const PointwiseView<T, T, I> M{
          &layer,     1,          width,   lower,   0, T(1), T(2), A.ptr.data(), A.idx.data(), nullptr,
          ptr.data(), idx.data(), nullptr, nullptr, v, x,    y,    o[0],         o[1]};
      constexpr int64_t size = largest_room<T>(lower);
      std::vector<T> numbers(isa::kTileRows * (features + 1 + 2 * width)), some(size + lower + 1);
      std::vector<int32_t> places(size + lower + 1 + isa::kTileRows * lower);
      std::vector<typename LargestRoom<T>::Key> keys(size);
      const LargestRoom<T> room{some.data(), some.data() + size, places.data(), places.data() + size,
                                keys.data()};
      isa::pointwise_rows<T, T, I>(M, r0, r1, {numbers.data(), places.data() + size + lower + 1, room});
    });
    compare<T>("pointwise columns", n, 1, [&](int64_t r0, int64_t r1, T** o) {
      std::vector<T> column = numbers<T>();
      isa::pointwise_columns<T, T, I>(
          {&layer, 1, width, lower, 0, T(1), T(2), A.ptr.data(), A.idx.data(), nullptr, ptr.data(),
           idx.data(), nullptr, nullptr, v, x, y, column.data(), o[0]},
          r0, r1);
    });
  }

  void stencils() const {
    const int64_t offsets[] = {0, 0, 0, -1, 0, 1, 0, 2, -3}, bounds[] = {0, 3, 12, 13};
    const StencilView S{{6, 5, 13}, {false, true, true}, offsets, 3, bounds, 3, 3, 13, 1};
    compare<T>("stencils", S.blocks(), 3, [&](int64_t b0, int64_t b1, T** o) {
      isa::stencil<T>(S, Coefficients::constant, b0, b1, x, y, o[0], false);
      isa::stencil_products<T>(S, b0, b1, x, y, o[1], false);
      isa::stencil_correlation<T>(S, b0, b1, x, y, o[2]);
    });
  }
};

template <class T, class I>
void all_kernels() {
  const Matrix<I> points(221, grid(17, 1)), full(100, [](int64_t, int64_t) { return true; }),
      scattered(90, [](int64_t i, int64_t j) { return i == j || (i % 3 != 2 && (7 * i + 13 * j) % 11 < 2); });
  for (const Matrix<I>* A : {&points, &scattered}) {
    const Kernels<T, I> all{*A};
    for (const int64_t k : {1, 17}) all.products(k), all.loops(k), all.segments(k), all.triangles(k);
    all.factors(), all.sparse_products(), all.pointwise();
  }
  const Kernels<T, I> all{full};
  all.sums(), all.perceptrons(), all.stencils();
}

// Kept memory has one owner at a time.
void buffers() {
  Buffers& buffers = Buffers::get();
  on_two(400, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const size_t bytes = i % 3 ? Buffers::kLeast : 2 * Buffers::kLeast;
      auto* data = static_cast<int64_t*>(buffers.take(bytes));
      data[0] = data[bytes / sizeof(int64_t) - 1] = i;
      if (i % 7 == 0) buffers.set_limit((i % 2 ? 8 : 1) * Buffers::kLeast);
      require(data[0] == i && data[bytes / sizeof(int64_t) - 1] == i, "a block of two owners");
      buffers.give_back(data, bytes);
    }
  });
}

// Loops that lose time to other processes have their caller work alone for a while. Uneven ones do not.
void contention() {
  constexpr int64_t us = 1'000, ms = 1'000'000;
  Contention c;
  const auto loop = [&](int64_t t, int64_t wall) {  // parts of 50 us, measured where they are watched
    const int64_t own = c.watches() ? 50 * us : 0;
    c.judge({t + wall, wall, 50 * us, own, 2 * own});
  };
  for (int64_t t = 0; t < 100 * ms; t += ms) loop(t, 60 * us);
  require(!c.watches(), "even parts are not watched");
  loop(0, 4 * ms);
  require(!c.alone(4 * ms) && c.watches(), "a wait has loops watched");
  c.judge({14 * ms, 10 * ms, ms, ms, 11 * ms});        // uneven parts
  c.judge({19 * ms, 9 * ms, 8 * ms, 2 * ms, 4 * ms});  // the caller was interrupted
  require(!c.alone(20 * ms), "neither is a loss");
  loop(25 * ms, ms);
  require(c.alone(40 * ms) && !c.alone(41 * ms), "16 times the loss of 0.9 ms");
  loop(100 * ms, ms);
  require(c.alone(129 * ms) && !c.alone(130 * ms), "twice as long if the next try loses as well");
  for (int64_t i = 0; i < 64; ++i) loop(200 * ms, 60 * us);
  require(!c.watches(), "tries that lose nothing end it");
  for (int64_t i = 0; i < 2; ++i) loop(300 * ms, ms);
  require(c.alone(315 * ms) && !c.alone(316 * ms), "what was is forgotten");
  for (int64_t i = 0; i < 20; ++i) loop(400 * ms, 900 * ms);
  require(!c.alone(5'400 * ms), "not for longer than 4 s");
}

int run() {
  all_kernels<float, int64_t>();
  all_kernels<double, int32_t>();
  buffers(), contention();
  return 0;
}

}  // namespace
}  // namespace learnsolve::test

int main() {
#if defined(__AVX2__)
  if (!__builtin_cpu_supports("x86-64-v3")) return 77;
#endif
  return learnsolve::test::run();
}
