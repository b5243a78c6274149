// Structure analysis: faults are found, transposes and blocks are what csr_view.h says.
#include "analysis/matching.h"
#include "analysis/pattern.h"
#include "analysis/triples.h"
#include "tests/matrices.h"

namespace learnsolve::test {
namespace {

using analysis::Fault;
using analysis::FaultKind;

template <class I>
void require_fault(const std::vector<I>& ptr, const std::vector<I>& idx, int64_t cols, FaultKind kind,
                   int64_t position, int64_t value) {
  const Array<I> p(ptr), i(idx);
  const Fault fault = analysis::validate(p.data(), p.size() - 1, i.data(), i.size(), cols);
  require(fault.kind == kind && fault.position == position && fault.value == value,
          "validate: expected fault " + std::to_string(static_cast<int>(kind)) + " at " +
              std::to_string(position) + ", got " + std::to_string(static_cast<int>(fault.kind)) + " at " +
              std::to_string(fault.position));
}

template <class I>
void faults() {
  require_fault<I>({0}, {}, 0, FaultKind::none, 0, 0);
  require_fault<I>({0, 1, 3}, {0, 0, 1}, 2, FaultKind::none, 0, 0);
  require_fault<I>({1, 1, 3}, {0, 0, 1}, 2, FaultKind::first, 0, 1);
  require_fault<I>({0, 2, 1}, {0}, 2, FaultKind::decreasing, 2, 1);
  require_fault<I>({0, 1, 4}, {0, 0, 1}, 2, FaultKind::last, 2, 4);
  // Row 1 claims entries far beyond the array: nothing may be read through it.
  require_fault<I>({0, 1000, 3}, {0, 0, 1}, 2, FaultKind::decreasing, 2, 3);
  require_fault<I>({0, 1000, 1000}, {0, 0, 1}, 2, FaultKind::last, 2, 1000);
  require_fault<I>({0, 1, 3}, {0, 0, 2}, 2, FaultKind::column_range, 2, 2);
  require_fault<I>({0, 1, 3}, {0, -1, 1}, 2, FaultKind::column_range, 1, -1);
  require_fault<I>({0, 1, 3}, {0, 1, 1}, 2, FaultKind::duplicate, 2, 1);
  require_fault<I>({0, 1, 3}, {0, 1, 0}, 2, FaultKind::unsorted, 2, 0);
}

template <class I>
void check_transpose(const Structure<I>& A, const Structure<I>& T) {
  require(T.ptr[0] == 0 && T.ptr[T.rows] == A.nnz(), "transpose: ptr, " + A.name);
  std::vector<bool> seen(A.nnz());
  for (int64_t j = 0; j < T.rows; ++j)
    for (int64_t q = T.ptr[j]; q < T.ptr[j + 1]; ++q) {
      const int64_t p = T.perm[q], i = T.idx[q];
      require(!seen[p], "transpose: an entry comes twice, " + A.name);
      seen[p] = true;
      require(A.idx[p] == j && A.ptr[i] <= p && p < A.ptr[i + 1], "transpose: wrong place, " + A.name);
      require(q == T.ptr[j] || T.idx[q - 1] < i, "transpose: not sorted, " + A.name);
    }
}

template <class I>
void check_diagonal(const Structure<I>& A) {
  Array<I> positions(std::min(A.rows, A.cols));
  analysis::diagonal_positions(A.ptr.data(), positions.size(), A.idx.data(), positions.data());
  for (int64_t i = 0; i < positions.size(); ++i) {
    int64_t expected = -1;
    for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p)
      if (A.idx[p] == i) expected = p;
    require(positions[i] == expected, "diagonal_positions, " + A.name);
  }
}

// Returns how many blocks are uniform.
template <class I>
int64_t check_blocks(const Structure<I>& S, int64_t block_weight) {
  const std::string what = "row_blocks, " + S.name;
  int64_t uniform_blocks = 0;
  require(S.table[0] == 0 && S.table[2 * S.n_blocks()] == S.rows, what + ": the rows are not covered");
  for (int64_t b = 0; b < S.n_blocks(); ++b) {
    const int64_t r0 = S.table[2 * b], r1 = S.table[2 * b + 2], length = S.table[2 * b + 1];
    require(r0 < r1, what + ": a block is empty");
    require(r1 == r0 + 1 || S.ptr[r1] - S.ptr[r0] + r1 - r0 <= block_weight, what + ": a block is too heavy");
    if (length == 0) continue;
    ++uniform_blocks;
    for (int64_t i = r0; i < r1; ++i)
      for (int64_t l = 0; l < length; ++l) {
        const int64_t p = S.ptr[i] + l, first = S.ptr[r0] + l, t = i - r0;
        require(S.ptr[i + 1] - S.ptr[i] == length, what + ": rows of a uniform block differ in length");
        require(S.idx[p] == S.idx[first] + t, what + ": columns of a uniform block do not advance by one");
        require(S.value_at(p) == S.value_at(first) + t * length, what + ": perm does not advance by length");
      }
  }
  return uniform_blocks;
}

// The size of a largest matching, by the simplest search for paths.
template <class I>
bool augment(const Structure<I>& S, int64_t i, std::vector<int64_t>& row_of, std::vector<bool>& seen) {
  for (int64_t p = S.ptr[i]; p < S.ptr[i + 1]; ++p) {
    const int64_t j = S.idx[p];
    if (seen[j]) continue;
    seen[j] = true;
    if (row_of[j] < 0 || augment(S, row_of[j], row_of, seen)) {
      row_of[j] = i;
      return true;
    }
  }
  return false;
}

template <class I>
void check_matching(const Structure<I>& S) {
  Array<I> row_of(S.cols);
  analysis::match_rows(S.ptr.data(), S.rows, S.idx.data(), S.cols, row_of.data());
  std::vector<bool> used(S.rows);
  int64_t matched = 0, largest = 0;
  for (int64_t j = 0; j < S.cols; ++j) {
    const int64_t i = row_of[j];
    if (i < 0) continue;
    bool stored = false;
    for (int64_t p = S.ptr[i]; p < S.ptr[i + 1]; ++p) stored = stored || S.idx[p] == j;
    require(stored && !used[i], "match_rows: no entry, or a row twice, " + S.name);
    used[i] = true;
    ++matched;
  }
  std::vector<int64_t> plain(S.cols, -1);
  for (int64_t i = 0; i < S.rows; ++i) {
    std::vector<bool> seen(S.cols);
    largest += augment(S, i, plain, seen);
  }
  require(matched == largest, "match_rows: not the largest matching, " + S.name);
}

void check_triples(Random& random) {
  for (const int64_t entries : {0, 1, 40, 2000}) {
    const int64_t rows = 9, cols = 50;
    std::vector<int64_t> i(entries), j(entries);
    for (int64_t e = 0; e < entries; ++e)
      i[e] = static_cast<int64_t>(random() % rows), j[e] = static_cast<int64_t>(random() % cols);
    const analysis::Triples t = analysis::sort_triples(i.data(), j.data(), entries, rows);
    std::vector<int64_t> order(entries);
    for (int64_t e = 0; e < entries; ++e) order[e] = e;
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return std::pair(i[a], j[a]) < std::pair(i[b], j[b]); });
    require(t.order == order, "sort_triples: not in the order of rows and columns");
    require(t.first.size() == t.idx.size() && t.ptr.back() == static_cast<int64_t>(t.idx.size()),
            "sort_triples: as many places as columns");
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t p = t.ptr[row]; p < t.ptr[row + 1]; ++p)
        require(i[order[t.first[p]]] == row && j[order[t.first[p]]] == t.idx[p],
                "sort_triples: another place");
  }
}

template <class I>
void all_patterns(Random& random) {
  int64_t uniform_blocks[2] = {0, 0};
  std::vector<Pattern> all = patterns(random);
  for (const Pattern& pattern : vector_patterns()) all.push_back(pattern);
  for (const Pattern& pattern : all)
    for (const int64_t block_weight : {1, 48, 400}) {
      const Structure<I> A = structure<I>(pattern, block_weight), T = transposed(A, block_weight);
      const Fault fault = analysis::validate(A.ptr.data(), A.rows, A.idx.data(), A.nnz(), A.cols);
      require(fault.kind == FaultKind::none, "validate refuses " + A.name);
      check_transpose(A, T);
      check_diagonal(A);
      check_matching(A);
      check_matching(T);
      uniform_blocks[0] += check_blocks(A, block_weight);
      uniform_blocks[1] += check_blocks(T, block_weight);
    }
  // The kernels' fast paths are tried only if there are such blocks, without and with perm.
  require(uniform_blocks[0] > 50 && uniform_blocks[1] > 50, "the patterns have too few uniform blocks");
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(analysis) {
  using namespace learnsolve::test;
  Random random(4);
  faults<int32_t>();
  faults<int64_t>();
  all_patterns<int32_t>(random);
  all_patterns<int64_t>(random);
  check_triples(random);
}
