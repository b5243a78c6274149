// The bodies of the CUDA kernels for sweeps and their adjoint (kernels/richardson*.cuh), and the sums of
// persistent loops (kernels/grid.cuh), run on the host as a device would, lanes forwards and backwards.
#include "kernels/richardson.cuh"
#include "kernels/richardson_gradients.cuh"
#include "tests/richardson_system.h"
#include "tests/schedules.h"

namespace learnsolve::test {
namespace {

using namespace learnsolve::cuda;

// A system in arrays as a device has them, and what its bodies write.
template <class T, class I>
struct OnDevice {
  const System<T, I>& system;
  Aligned<I> ptr, idx, perm;
  Aligned<T> a, x, b, s, old, lambda, c, learns, next, g, later, bbar, sbar;
  std::vector<T> sums;

  explicit OnDevice(const System<T, I>& from)
      : system(from),
        ptr(aligned(from.S.ptr)),
        idx(aligned(from.S.idx)),
        perm(aligned(from.S.perm)),
        a(aligned(from.values)),
        x(aligned(from.x)),
        b(aligned(from.b)),
        s(aligned(from.s)),
        old(aligned(from.old)),
        lambda(aligned(from.lambda)),
        c(aligned(from.c)),
        learns(from.k),
        next(from.S.rows * from.k),
        g(from.S.rows * from.k),
        later(aligned(from.later)),
        bbar(from.S.rows * from.k),
        sbar(from.S.rows) {
    for (int64_t j = 0; j < from.k; ++j) learns[j] = 1;
    for (int64_t o = 0; o < bbar.size(); ++o) bbar[o] = 0;
    for (int64_t i = 0; i < sbar.size(); ++i) sbar[i] = 0;
  }
  RowPass<T, I> matrix() const {
    RowPass<T, I> A{};
    A.rows = {ptr.data(), nullptr, system.S.rows, system.S.nnz(), 0, 0, 1};
    A.idx = idx.data(), A.perm = system.S.permuted ? perm.data() : nullptr, A.a = a.data();
    A.k = system.k, A.batch = 1, A.entries = true;
    return A;
  }
  Sweep<T> sweep(bool momentum) {
    sums.assign(system.k + 64, T(0));
    return {x.data(),        b.data(),    s.data(), momentum ? old.data() : nullptr,
            system.momentum, next.data(), nullptr};
  }
  SweepAdjoint<T> adjoint(bool norms, bool want_s, bool momentum) {
    sums.assign(64, T(0));
    return {x.data(),
            b.data(),
            s.data(),
            lambda.data(),
            norms ? c.data() : nullptr,
            g.data(),
            bbar.data(),
            want_s ? sbar.data() : nullptr,
            system.momentum,
            system.factor,
            momentum ? later.data() : nullptr,
            momentum ? old.data() : nullptr,
            sums.data()};
  }
};

template <class Shape, class T, class I>
void sweep_case(const System<T, I>& system, bool momentum, bool given, const std::string& name) {
  const int64_t rows = system.S.rows, k = system.k;
  std::vector<Sum> next(rows * k), squares(k);
  Aligned<T> product(rows * k);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < k; ++j) {
      next[i * k + j] = next_of(system, i, j, momentum);
      squares[j] = squares[j] + square(system.residual[i * k + j]);
      T ax = 0;
      for (int64_t p = system.S.ptr[i]; p < system.S.ptr[i + 1]; ++p)
        ax += system.values[system.S.value_at(p)] * system.x[system.S.idx[p] * k + j];
      product[i * k + j] = ax;
    }
  Aligned<T> whole;
  for (const bool backwards : {false, true}) {
    OnDevice<T, I> device(system);
    Sweep<T> o = device.sweep(momentum);
    const RowPass<T, I> A = device.matrix();
    for (int64_t tile = 0; tile < k; tile += Shape::columns)
      for (int64_t i = 0; i < rows; ++i) {
        o.squares = device.sums.data() + tile;
        relax_row<Shape>(HostTeam<Shape::lanes>{backwards}, A, A.a, given ? product.data() : nullptr, o, i,
                         tile);
      }
    require_close(unaligned(device.next), next, "relax_row, " + name);
    require_close(Array<T>(std::vector<T>(device.sums.begin(), device.sums.begin() + k)), squares,
                  "relax_row squares, " + name);
    if (backwards) require(same_bits(device.next, whole), "relax_row depends on the order of lanes, " + name);
    whole = device.next;
  }
}

template <class Shape, class T, class I>
void adjoint_case(const System<T, I>& system, bool norms, bool want_s, bool momentum,
                  const std::string& name) {
  const int64_t rows = system.S.rows, k = system.k;
  std::vector<Sum> g(rows * k), bbar(rows * k), sbar(rows), later(rows * k), sums(1), passed(rows * k);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < k; ++j) {
      const int64_t o = i * k + j;
      bbar[o] = rho_of(system, i, j, norms);
      g[o] = scaled(bbar[o], -1);
      sbar[i] = sbar[i] + scaled(system.residual[o], system.lambda[o]);
      later[o] = later_of(system, o);
      sums[0] = sums[0] + scaled(moved(system, o), system.lambda[o]);
      passed[o].add(system.lambda[o]);
      for (int64_t p = system.S.ptr[i]; p < system.S.ptr[i + 1]; ++p)
        passed[o].add(system.values[system.S.value_at(p)], system.x[system.S.idx[p] * k + j]);
    }
  Aligned<T> whole;
  for (const bool backwards : {false, true}) {
    const HostTeam<Shape::lanes> team{backwards};
    OnDevice<T, I> device(system);
    const SweepAdjoint<T> o = device.adjoint(norms, want_s, momentum);
    const RowPass<T, I> A = device.matrix();
    for (int64_t i = 0; i < rows; ++i)
      relax_adjoint_row<Shape>(team, A, A.a, static_cast<const T*>(nullptr), o, device.learns.data(), i);
    require_close(unaligned(device.g), g, "relax_adjoint_row g, " + name);
    require_close(unaligned(device.bbar), bbar, "relax_adjoint_row bbar, " + name);
    if (want_s) require_close(unaligned(device.sbar), sbar, "relax_adjoint_row sbar, " + name);
    if (momentum) {
      require_close(unaligned(device.later), later, "relax_adjoint_row later, " + name);
      T sum = 0;
      for (const T part : device.sums) sum += part;
      for (int64_t n = 0; n < Shape::lanes; ++n) ++sums[0].roundings;
      require_close(Array<T>(std::vector<T>{sum}), sums, "relax_adjoint_row sums, " + name);
    }
    if (backwards) require(same_bits(device.g, whole), "relax_adjoint_row depends on the order of lanes");
    whole = device.g;
    // As if A were the transpose, and x what it is multiplied with.
    for (int64_t tile = 0; tile < k; tile += Shape::columns)
      for (int64_t i = 0; i < rows; ++i)
        add_product_row<Shape>(team, A, A.a, static_cast<const T*>(device.x.data()),
                               static_cast<const T*>(nullptr), device.lambda.data(), i, tile);
    require_close(unaligned(device.lambda), passed, "add_product_row, " + name);
  }
}

// A column without a cotangent adds nothing, whatever its iterates are.
template <class Shape, class T, class I>
void nothing_of_a_column(const System<T, I>& system, const std::string& name) {
  const int64_t rows = system.S.rows, k = system.k, j = k - 1;
  OnDevice<T, I> device(system);
  device.learns[j] = 0;
  for (int64_t i = 0; i < rows; ++i) {
    device.x[i * k + j] = device.old[i * k + j] = std::numeric_limits<T>::quiet_NaN();
    device.lambda[i * k + j] = device.later[i * k + j] = 0;
  }
  const SweepAdjoint<T> o = device.adjoint(true, true, true);
  const RowPass<T, I> A = device.matrix();
  for (int64_t i = 0; i < rows; ++i)
    relax_adjoint_row<Shape>(HostTeam<Shape::lanes>{}, A, A.a, static_cast<const T*>(nullptr), o,
                             device.learns.data(), i);
  for (int64_t i = 0; i < rows; ++i) {
    require(device.g[i * k + j] == 0 && device.bbar[i * k + j] == 0 && device.later[i * k + j] == 0,
            name + ": a column without a cotangent has one now");
    require(std::isfinite(device.sbar[i]), name + ": a column without a cotangent adds to sbar");
  }
  for (const T part : device.sums) require(std::isfinite(part), name + ": or to a sum");
}

template <class Shape, class T, class I>
void shape_cases(const System<T, I>& system, const std::string& name) {
  for (const bool momentum : {false, true}) {
    sweep_case<Shape>(system, momentum, false, name);
    sweep_case<Shape>(system, momentum, true, name + ", product given");
    for (const bool norms : {false, true})
      for (const bool want_s : {false, true}) {
        if (!norms && !want_s) continue;
        adjoint_case<Shape>(system, norms, want_s, momentum, name);
      }
  }
  nothing_of_a_column<Shape>(system, name);
}

template <class T, class I>
void all_cases(Random& random, const char* types) {
  constexpr int V = 16 / sizeof(T);
  std::vector<Pattern> patterns{scattered(random, 30, 30, 0.2), banded(23, 23, {0, 2, 5, 6})};
  std::vector<int64_t> lengths(40, 2);
  lengths[7] = 40, lengths[20] = 0;
  patterns.push_back(with_lengths(random, lengths, "one long row"));
  for (const Pattern& pattern : patterns) {
    const Structure<I> A = structure<I>(pattern, 48);
    const std::string name = A.name + ", " + types;
    const System<T, I> one(random, A, 1);
    shape_cases<VectorShape<1>>(one, name + ", 1 lane");
    shape_cases<VectorShape<2>>(one, name + ", 2 lanes");
    shape_cases<VectorShape<8>>(one, name + ", 8 lanes");
    shape_cases<VectorShape<32>>(one, name + ", 32 lanes");
    const Structure<I> transposed_a = transposed(A, 48);
    shape_cases<VectorShape<2>>(System<T, I>(random, transposed_a, 1), name + ", permuted");
    for (const int64_t k : {3, 11}) shape_cases<ColumnsShape<8, 1>>(System<T, I>(random, A, k), name);
    for (const int64_t k : {4, 8, 24}) {
      shape_cases<ColumnsShape<4, V>>(System<T, I>(random, A, k), name + ", packs");
      shape_cases<ColumnsShape<16, V>>(System<T, I>(random, transposed_a, k), name + ", packs, permuted");
    }
  }
}

// Every row lies in one chunk; totals are sums, in the same order for lanes forwards and backwards.
void sums(Random& random) {
  for (const int64_t rows : {0, 1, 127, 128, 129, 5000, 131072, 131073, 1000003}) {
    const Chunks chunks(rows);
    int64_t next = 0;
    for (int64_t c = 0; c < chunks.count; ++c) {
      require(chunks.begin(c) == next && chunks.end(c) >= next, "a row in no chunk, or in two");
      next = chunks.end(c);
    }
    require(next == rows && chunks.count >= 1 && chunks.count <= Chunks::kMost,
            "chunks do not end with the rows");
  }
  for (const int64_t k : {1, 2, 3, 8, 32, 45})
    for (const int64_t count : {1, 3, 100, 1024}) {
      const Array<double> partials = uniform<double>(random, count * k);
      const int width = columns_together(k);
      for (int64_t c0 = 0; c0 < k; c0 += width) {
        std::vector<double> shared[2] = {std::vector<double>(256), std::vector<double>(256)};
        for (const bool backwards : {false, true})
          add_chunks(HostTeam<256>{backwards}, partials.data(), count, k, c0, width,
                     shared[backwards].data());
        require(shared[0] == shared[1], "add_chunks depends on the order of lanes");
        for (int64_t c = c0; c < std::min<int64_t>(k, c0 + width); ++c) {
          Sum sum;
          for (int64_t chunk = 0; chunk < count; ++chunk) sum.add(partials[chunk * k + c]);
          require(std::fabs(shared[0][c - c0] - sum.value) <= error_bound<double>(sum),
                  "add_chunks: a total");
        }
      }
    }
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(device_richardson) {
  using namespace learnsolve::test;
  Random random(7);
  sums(random);
  all_cases<float, int32_t>(random, "float, int32");
  all_cases<float, int64_t>(random, "float, int64");
  all_cases<double, int32_t>(random, "double, int32");
  all_cases<double, int64_t>(random, "double, int64");
}
