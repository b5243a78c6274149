// Kernels of row_pass.cuh, and which of them a pass uses.
#pragma once

#include "kernels/row_pass.cuh"

namespace learnsolve::cuda {

template <int Lanes, int U, bool Sum, class T, class I>
LS_KERNEL(kThreads, Lanes == 2 ? 6 : 4)
vector_kernel(LS_ARGUMENT RowPass<T, I> P) {
  for_members(P.groups, [&](const Members& members) {
    for_items<Lanes>(P.rows.pieces(),
                     [&](const auto& team, int64_t s) { vector_piece<U, Sum>(team, P, s, members); });
  });
}

template <int Lanes, int V, bool Sum, bool Dot, class T, class I>
LS_KERNEL(kThreads, 3)
columns_kernel(LS_ARGUMENT RowPass<T, I> P) {
  const int64_t width = Dot ? P.k : Lanes * V;
  for_members(P.groups, [&](const Members& members) {
    for_items<Lanes>(P.rows.pieces(), [&](const auto& team, int64_t s) {
      for_aside((P.k + width - 1) / width, [&](int64_t tile) {
        const int64_t c = tile * width, end = c + width < P.k ? c + width : P.k;
        columns_piece<V, Sum, Dot>(team, P, s, c, end, members);
      });
    });
  });
}

// y_i += the sums of the further pieces of row i, in each of its columns and of the results: by the team of
// the first of them.
template <class T, class I>
LS_KERNEL(kThreads)
further_kernel(LS_ARGUMENT RowPass<T, I> P, int64_t results) {
  for_aside(results, [&](int64_t r) {
    for_items<32>(P.rows.further * P.k, [&](const auto& team, int64_t item) {
      const int64_t t = item / P.k, c = item % P.k, count = P.rows.opens(t);
      if (count == 0) return;
      T sum = 0;
      for (int64_t piece = t + team.lane; piece < t + count; piece += 32)
        sum += P.further.p[r * P.further.step + piece * P.k + c];
      sum = team.sum(sum);
      if (team.first()) P.y.p[r * P.y.step + P.rows.table[2 * t] * P.k + c] += sum;
    });
  });
}

template <int Lanes, int U, bool Sum, class T, class I>
void launch_vector(const RowPass<T, I>& P, cudaStream_t stream) {
  const dim3 grid(blocks_for(P.rows.pieces(), kThreads / Lanes), 1, blocks_aside(P.groups.count));
  LS_LAUNCH(grid, kThreads, stream, (P), vector_kernel<Lanes, U, Sum, T, I>);
}

template <int Lanes, int V, bool Sum, bool Dot, class T, class I>
void launch_columns(const RowPass<T, I>& P, cudaStream_t stream) {
  const dim3 grid(blocks_for(P.rows.pieces(), kThreads / Lanes), Dot ? 1 : blocks_for(P.k, Lanes * V, 0xffff),
                  blocks_aside(P.groups.count));
  LS_LAUNCH(grid, kThreads, stream, (P), columns_kernel<Lanes, V, Sum, Dot, T, I>);
}
template <int V, bool Sum, bool Dot, class T, class I>
void launch_columns(const RowPass<T, I>& P, cudaStream_t stream) {
  if (P.k <= 4 * V)
    launch_columns<4, V, Sum, Dot>(P, stream);
  else if (P.k <= 8 * V)
    launch_columns<8, V, Sum, Dot>(P, stream);
  else
    launch_columns<16, V, Sum, Dot>(P, stream);
}

// One column: as many loads at a time as an average row has entries, by few lanes, whose total is soon made.
// Other rows hide a long one, but not one of several pieces.
template <bool Sum, class T, class I>
void launch_vector(const RowPass<T, I>& P, cudaStream_t stream) {
  const int64_t mean = P.rows.nnz / P.rows.rows;
  if (mean >= 64)
    launch_vector<32, 2, Sum>(P, stream);
  else if (mean >= 24 || P.rows.further > 0)
    launch_vector<8, 4, Sum>(P, stream);
  else if (mean >= 9 && (P.perm || !Sum))
    launch_vector<4, 4, Sum>(P, stream);
  else if (mean >= 9 || !Sum)
    launch_vector<2, 4, Sum>(P, stream);
  else
    launch_vector<1, 8, Sum>(P, stream);
}

// The pass, for at least one row, column and member of the batch.
template <bool Sum, bool Dot, class T, class I>
cudaError_t launch_row_pass(const RowPass<T, I>& P, cudaStream_t stream) {
  if (P.k > 1)
    P.packs ? launch_columns<16 / sizeof(T), Sum, Dot>(P, stream) : launch_columns<1, Sum, Dot>(P, stream);
  else if constexpr (!Sum || !Dot)
    launch_vector<Sum>(P, stream);
  const int64_t results = P.y.adds ? P.groups.count : P.groups.batch;
  if (Sum && P.rows.further > 0)
    LS_LAUNCH(dim3(blocks_for(P.rows.further * P.k, kThreads / 32), blocks_aside(results)), kThreads, stream,
              (P, results), further_kernel<T, I>);
  return cudaGetLastError();
}

}  // namespace learnsolve::cuda
