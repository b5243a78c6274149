// Every function that allocates, with each of its allocations failing once.
#include <array>
#include <cerrno>
#include <new>
#include <numeric>
#include <tuple>

#include "analysis/coloring.h"
#include "analysis/factors.h"
#include "analysis/levels.h"
#include "analysis/multigrid.h"
#include "analysis/pattern.h"
#include "analysis/sparse_products.h"
#include "ops/buffers.h"
#include "tests/matrix.h"

namespace {
thread_local int64_t allocations_left = -1;  // until one fails. Negative: none does
bool fails() { return allocations_left >= 0 && allocations_left-- == 0; }
}  // namespace

// What the linker calls in place of the allocating functions (CMakeLists.txt).
extern "C" {
void* __real__Znwm(std::size_t bytes);  // operator new
void* __wrap__Znwm(std::size_t bytes) { return fails() ? throw std::bad_alloc() : __real__Znwm(bytes); }
void* __real_realloc(void* memory, std::size_t bytes);
void* __wrap_realloc(void* memory, std::size_t bytes) {
  return fails() ? nullptr : __real_realloc(memory, bytes);
}
int __real_posix_memalign(void** memory, std::size_t alignment, std::size_t bytes);
int __wrap_posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  return fails() ? ENOMEM : __real_posix_memalign(memory, alignment, bytes);
}
}

namespace learnsolve::test {
namespace {

// Calls f() with its first allocation failing, then its second, until all succeed: each call throws bad_alloc
// or, where it can do without (std::stable_sort), returns what f() returns undisturbed. AddressSanitizer sees
// memory that a failed call has lost.
template <class F>
void require_survival(const std::string& what, const F& f) {
  const auto expected = f();
  for (int64_t k = 0;; ++k) {
    allocations_left = k;
    try {
      const auto found = f();
      const bool all = allocations_left >= 0;
      allocations_left = -1;
      require(found == expected, what + ": another result after allocation " + std::to_string(k) + " failed");
      require(k > 0 || !all, what + ": nothing is allocated");
      if (all) return;
    } catch (const std::bad_alloc&) {
      allocations_left = -1;
    }
  }
}

using I = int32_t;
using Numbers = std::vector<I>;
using Arrays = Matrix<I>;

void one_matrix(const Arrays& A) {
  const I *ptr = A.ptr.data(), *idx = A.idx.data();
  require_survival("row_blocks", [&] { return analysis::row_blocks<I>(ptr, A.n, idx, nullptr, 48); });
  require_survival("match_rows", [&] {
    Numbers row_of(A.n);
    analysis::match_rows(ptr, A.n, idx, A.n, row_of.data());
    return row_of;
  });
  for (const bool upper : {false, true}) {
    require_survival("triangle", [&] {
      const auto t = analysis::triangle<I>(ptr, A.n, idx, nullptr, upper,
                                           analysis::triangle_rows<I>(ptr, A.n, idx, upper, 0));
      return std::tuple(t.ptr, t.idx, t.perm,
                        analysis::triangle_blocks<I>(t.ptr.data(), A.n, t.idx.data(), nullptr));
    });
    require_survival("level_schedule", [&] {
      const auto s = analysis::level_schedule<I>(ptr, A.n, idx, upper);
      return std::tuple(s.order, s.levels);
    });
  }
  require_survival("greedy_coloring", [&] {
    Numbers colors(A.n), rows(A.n);
    const int64_t count =
        analysis::greedy_coloring(ptr, A.n, idx, A.tptr.data(), A.tidx.data(), true, colors.data());
    Numbers first(count + 1);
    analysis::group_by_color(colors.data(), A.n, count, first.data(), rows.data());
    return std::tuple(colors, first, rows);
  });
  require_survival("column_coloring", [&] {
    Numbers colors(A.n);
    analysis::column_coloring(ptr, A.n, idx, A.tptr.data(), A.n, A.tidx.data(),
                              analysis::Order::smallest_last, colors.data());
    return std::tuple(colors, analysis::is_column_coloring(ptr, A.n, idx, colors.data(), A.n));
  });
  require_survival("substitution", [&] {
    const Numbers colors(A.n, 0);
    const auto s = analysis::substitution<I>(ptr, A.n, idx, A.perm.data(), colors.data());
    return std::tuple(s.ptr, s.idx, s.equation, s.unknown);
  });
  require_survival("symmetric_coloring", [&] {
    Numbers star(A.n), acyclic(A.n), edge(A.ptr[A.n], 0);
    using Coloring = analysis::SymmetricColoring<I>;
    Coloring(ptr, A.n, idx, analysis::Order::largest_first, star.data()).star();
    Coloring(ptr, A.n, idx, analysis::Order::natural, acyclic.data()).acyclic(edge.data(), A.ptr[A.n]);
    return std::tuple(star, acyclic);
  });
  require_survival("level_fill", [&] {
    const auto found = analysis::level_fill(ptr, A.n, idx, 1);
    return std::tuple(found.ptr, found.idx);
  });
  require_survival("complete_fill", [&] {
    std::vector<I> order(A.n);
    std::iota(order.begin(), order.end(), I(0));
    const auto L = analysis::complete_fill(ptr, A.n, idx, order.data(), int64_t{1} << 40);
    return std::tuple(L.entries, L.ptr, L.idx);
  });
  for (const auto kind : {analysis::Factors::lu, analysis::Factors::cholesky,
                          analysis::Factors::modified_cholesky, analysis::Factors::relaxed_cholesky})
    require_survival("elimination_plan", [&] {
      const auto p = analysis::elimination_plan<I>(ptr, A.n, idx, A.diagonal.data(), kind, 0);
      std::vector<int64_t> levels(p.steps);
      analysis::elimination_levels(p.steps, p.order.data(), p.pivot.data(), p.ptr.data(), p.pairs.data(),
                                   p.steps + p.ones, levels.data());
      const auto copy = [](const auto& a, int64_t n) { return Numbers(a.data(), a.data() + n); };
      return std::tuple(copy(p.order, p.steps), copy(p.source, p.steps), copy(p.pivot, p.steps),
                        copy(p.ptr, p.steps + 1), copy(p.pairs, 2 * p.products), levels);
    });
  const std::vector<int64_t> long_ptr(A.ptr.begin(), A.ptr.end()), long_idx(A.idx.begin(), A.idx.end());
  std::vector<double> values(A.idx.size(), -1);
  for (const I p : A.diagonal) values[p] = 100;
  for (const auto choose : {analysis::threshold_lu, analysis::threshold_cholesky})
    require_survival("threshold", [&] {
      const auto c = choose(long_ptr.data(), A.n, long_idx.data(), values.data(), 2, 1e-3);
      return std::tuple(c.ptr, std::vector<int64_t>(c.idx.data(), c.idx.data() + c.ptr.back()), c.row);
    });
}

void coarsened(const Arrays& A) {
  std::vector<double> values(A.idx.size(), -1);
  for (const I p : A.diagonal) values[p] = 100;
  const analysis::Graph<I> G{A.ptr.data(), A.idx.data(), values.data(), A.n};
  require_survival("smoothed aggregation", [&] {
    Numbers of(A.n);
    const int64_t count = analysis::aggregate(G, 0.1, of.data());
    std::vector<double> candidates(2 * A.n, 1), coarse(4 * count), H(12);
    for (int64_t i = 0; i < A.n; ++i) candidates[2 * i] = static_cast<double>(i);
    analysis::orthonormalize(of.data(), A.n, 1, count, 2, candidates.data(), coarse.data());
    const auto P = analysis::smoothed_prolongation(G, of.data(), 1, count, 2, candidates.data(), 0.5);
    const std::vector<double> d(A.n, 100);
    return std::tuple(of, coarse, P.ptr, P.idx, P.values, analysis::lanczos(G, d.data(), 3, H.data()),
                      analysis::arnoldi(G, d.data(), 3, H.data()), H);
  });
  require_survival("Ruge-Stueben", [&] {
    std::vector<uint8_t> strong(A.idx.size()), coarse(A.n);
    analysis::classical_strength(G, 0.25, strong.data());
    analysis::split(analysis::StrongGraph<I>(G, strong.data()), true, coarse.data());
    const std::vector<double> d(A.n, 100);
    const auto P = analysis::classical_interpolation(G, d.data(), strong.data(), coarse.data());
    const auto Q = analysis::extended_interpolation(G, d.data(), strong.data(), coarse.data(), 2);
    std::vector<uint8_t> twice = coarse;
    analysis::split_again(analysis::StrongGraph<I>(G, strong.data()), twice.data());
    const auto R = analysis::multipass_interpolation(G, d.data(), strong.data(), twice.data());
    return std::tuple(strong, coarse, P.ptr, P.idx, P.values, Q.ptr, Q.idx, Q.values, R.ptr, R.idx, R.values);
  });
}

void two_matrices(const Arrays& A, const Arrays& B) {
  const int64_t n = A.n;
  require_survival("merge_patterns", [&] {
    const auto u = analysis::merge_patterns(A.ptr.data(), A.idx.data(), B.ptr.data(), B.idx.data(), n);
    return std::tuple(u.ptr, u.idx, u.codes, u.starts);
  });
  const int64_t products = analysis::count_products(A.idx.data(), A.ptr[n], B.ptr.data());
  require_survival("spgemm", [&] {
    Numbers c_ptr(n + 1);
    std::vector<int32_t> positions(products), starts(A.perm.size());
    std::vector<uint8_t> repeated(n);
    analysis::Growing<I> c_idx;
    require(analysis::product_pattern(A.ptr.data(), n, A.idx.data(), B.ptr.data(), n, B.idx.data(), n,
                                      c_ptr.data(), c_idx, int64_t{1} << 30, 1),
            "spgemm: too large");
    const Numbers columns(c_idx.data(), c_idx.data() + c_ptr[n]);
    analysis::positions_of_products(A.ptr.data(), n, A.idx.data(), B.ptr.data(), n, B.idx.data(), n,
                                    c_ptr.data(), columns.data(), positions.data(), repeated.data(), 1);
    analysis::product_starts(A.idx.data(), A.ptr[n], B.ptr.data(), A.perm.data(), starts.data());
    return std::tuple(c_ptr, columns, positions,
                      analysis::row_product_blocks(A.ptr.data(), n, A.idx.data(), B.ptr.data(), c_ptr.data(),
                                                   repeated.data(), 64),
                      analysis::column_product_blocks(A.tptr.data(), n, A.perm.data(), B.ptr.data(),
                                                      positions.data(), starts.data(), 64));
  });
}

// A block that cannot be entered into the list goes back to the system: its tensor dies without an exception.
void kept_memory() {
  constexpr size_t bytes = Buffers::kLeast;
  Buffers& buffers = Buffers::get();
  buffers.set_limit(4 * bytes);
  allocations_left = 0;
  const void* none = buffers.take(bytes);
  require(none == nullptr, "buffers: no memory is a null pointer");
  std::array<void*, 2> blocks{buffers.take(bytes), buffers.take(bytes)};
  allocations_left = 0;
  buffers.give_back(blocks[0], bytes);
  require(allocations_left < 0 && buffers.total() == 0, "buffers: a block that is not kept");
  buffers.give_back(blocks[1], bytes);
  require(buffers.total() == bytes, "buffers: the next one is");
  buffers.set_limit(0);
}

}  // namespace
}  // namespace learnsolve::test

int main() {
  using namespace learnsolve::test;
  const Arrays five(30, grid(6, 1)), nine(30, grid(6, 2)), band(30, [](int64_t i, int64_t j) {
    return j == i - 7 || j == i - 2 || j == i || j == i + 2 || j == i + 7;
  });
  for (const Arrays* A : {&five, &nine, &band}) one_matrix(*A), coarsened(*A);
  two_matrices(five, nine);
  two_matrices(band, five);
  kept_memory();
}
