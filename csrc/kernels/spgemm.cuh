// The three derivatives of the trilinear form of a sparse product (kernels/spgemm.h). A product a_ik b_kj
// falls on the entry of C that has its column: a team searches for it in row i of C. Every sum has an order
// that depends on the patterns and the number of lanes alone.
#pragma once

#include "kernels/groups.cuh"
#include "kernels/schedule.cuh"

namespace learnsolve::cuda {

// What is computed, from u and v: C's values from a and b, or the gradient of A from g and b, of B from a and
// g.
enum class Derivative { product, left, right };

template <class T, class I>
struct SparseProduct {
  const I *a_ptr, *a_idx;  // of A, or of its transpose, entry e of which is entry perm[e] of A
  const I* perm;
  const I *b_ptr, *b_idx, *c_ptr, *c_idx;
  int64_t a_rows, b_rows, items;
  BatchOf<const T> u, v;
  BatchResult<T> out;
  Groups groups;

  // Where column j stands in row i of C, -1 if it is not there.
  LS_DEVICE int64_t place(int64_t i, I j) const {
    int64_t begin = c_ptr[i];
    const int64_t end = c_ptr[i + 1];
    for (int64_t last = end; begin < last;) {
      const int64_t middle = begin + (last - begin) / 2;
      if (c_idx[middle] < j)
        begin = middle + 1;
      else
        last = middle;
    }
    return begin < end && c_idx[begin] == j ? begin : -1;
  }
};

// Row i of C, added up where it stands, entry of A by entry of A: the products of each fall on different
// entries of C.
template <class Team, class T, class I>
LS_DEVICE void row_sums(const Team& team, const SparseProduct<T, I>& P, int64_t i, const Members& members) {
  T* c = P.out.of(members);
  for (int64_t t = P.c_ptr[i] + team.lane; t < P.c_ptr[i + 1]; t += Team::size) c[t] = 0;
  __syncwarp(team.mask);
  for (int64_t p = P.a_ptr[i]; p < P.a_ptr[i + 1]; ++p) {
    const int64_t k = P.a_idx[p], end = P.b_ptr[k + 1];
    for (int64_t q = P.b_ptr[k] + team.lane; q < end; q += Team::size) {
      const int64_t t = P.place(i, P.b_idx[q]);
      if (t < 0) continue;
      for (int64_t m = members.b0; m < members.b1; ++m) c[t] += P.u.of(m)[p] * P.v.of(m)[q];
    }
    __syncwarp(team.mask);  // the next entry's products fall on the same row
  }
}

// ga_p = sum of g[place] b[q] over the row of B that entry e meets.
template <class Team, class T, class I>
LS_DEVICE void left_sum(const Team& team, const SparseProduct<T, I>& P, int64_t e, const Members& members) {
  const int64_t row = row_of_entry(P.a_ptr, 0, P.a_rows - 1, e), column = P.a_idx[e];
  const int64_t i = P.perm ? column : row, k = P.perm ? row : column;
  T sum = 0;
  for (int64_t q = P.b_ptr[k] + team.lane; q < P.b_ptr[k + 1]; q += Team::size) {
    const int64_t t = P.place(i, P.b_idx[q]);
    if (t < 0) continue;
    for (int64_t m = members.b0; m < members.b1; ++m) sum += P.u.of(m)[t] * P.v.of(m)[q];
  }
  const T total = team.sum(sum);
  if (team.first()) P.out.of(members)[P.perm ? static_cast<int64_t>(P.perm[e]) : e] = total;
}

// gb_q = sum of a[p] g[place] over the column of A that entry q meets: a row of the transpose.
template <class Team, class T, class I>
LS_DEVICE void right_sum(const Team& team, const SparseProduct<T, I>& P, int64_t q, const Members& members) {
  const int64_t k = row_of_entry(P.b_ptr, 0, P.b_rows - 1, q);
  T sum = 0;
  for (int64_t e = P.a_ptr[k] + team.lane; e < P.a_ptr[k + 1]; e += Team::size) {
    const int64_t t = P.place(P.a_idx[e], P.b_idx[q]), p = P.perm[e];
    if (t < 0) continue;
    for (int64_t m = members.b0; m < members.b1; ++m) sum += P.u.of(m)[p] * P.v.of(m)[t];
  }
  const T total = team.sum(sum);
  if (team.first()) P.out.of(members)[q] = total;
}

template <Derivative Of, int Lanes, class T, class I>
LS_KERNEL(kThreads)
sparse_product_kernel(LS_ARGUMENT SparseProduct<T, I> P) {
  for_members(P.groups, [&](const Members& members) {
    for_items<Lanes>(P.items, [&](const auto& team, int64_t n) {
      if constexpr (Of == Derivative::product)
        row_sums(team, P, n, members);
      else if constexpr (Of == Derivative::left)
        left_sum(team, P, n, members);
      else
        right_sum(team, P, n, members);
    });
  });
}

}  // namespace learnsolve::cuda
