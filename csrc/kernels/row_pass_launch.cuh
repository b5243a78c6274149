// Kernels of row_pass.cuh and vector_stretch.cuh, and which of them a pass uses.
#pragma once

#include "kernels/vector_stretch.cuh"

namespace learnsolve::cuda {

constexpr int kStretchThreads = 128;  // of a block that follows the merge path
constexpr int kStretchItems = 7;      // of each of those; learnsolve/matrix/device.py has the product
constexpr int kStretch = kStretchThreads * kStretchItems;
constexpr int kParts = 4;  // of a stretch, for several columns

template <int Lanes, bool Sum, bool Dot, class T, class I>
LS_KERNEL(kThreads, 4)
vector_rows_kernel(LS_ARGUMENT RowPass<T, I> P) {
  for_members(P.adds_up(Sum, Dot), P.batch, [&](Members members) {
    for_items<Lanes>(P.rows.rows,
                     [&](const auto& team, int64_t i) { vector_row<Sum, Dot>(team, P, i, members); });
  });
}

template <class T, class I>
LS_KERNEL(kStretchThreads, 8)
vector_stretches_kernel(LS_ARGUMENT RowPass<T, I> P) {
  LS_SHARED(scratch, StretchScratch<T, kStretchThreads, kStretchItems>);
  const Block<kStretchThreads> team;
  for_members(P.adds_up(true, false), P.batch, [&](Members members) {
    for_blocks(P.rows.stretches,
               [&](int64_t t) { vector_stretch<kStretchItems>(team, P, t, members, scratch); });
  });
}

template <class T, class I>
LS_KERNEL(kThreads, 4)
vector_entries_kernel(LS_ARGUMENT RowPass<T, I> P) {
  for_members(P.adds_up(false, true), P.batch, [&](Members members) {
    for_blocks(P.rows.stretches, [&](int64_t t) {
      for_thread<kThreads>([&](int lane) { vector_entries<kThreads>(P, t, lane, members); });
    });
  });
}

template <int Lanes, int V, bool Sum, bool Dot, class T, class I>
LS_KERNEL(kThreads, 3)
columns_kernel(LS_ARGUMENT RowPass<T, I> P) {
  constexpr int64_t width = Lanes * V;
  for_members(P.adds_up(Sum, Dot), P.batch, [&](Members members) {
    for_items<Lanes>(P.rows.pieces(), [&](const auto& team, int64_t s) {
      if (Dot) return columns_piece<V, Sum, Dot>(team, P, s, 0, P.k, members);
      for_aside((P.k + width - 1) / width, [&](int64_t tile) {
        const int64_t c = tile * width, end = c + width < P.k ? c + width : P.k;
        columns_piece<V, Sum, Dot>(team, P, s, c, end, members);
      });
    });
  });
}

// A warp for one column, a lane for each of several.
template <int Lanes, class T, class I>
LS_KERNEL(kThreads, 4)
carries_kernel(LS_ARGUMENT RowPass<T, I> P) {
  for_members(false, P.y_step ? P.batch : 1, [&](Members members) {
    for_items<Lanes>(P.rows.pieces() * P.k, [&](const auto& team, int64_t item) {
      add_carries(team, P, item / P.k, item % P.k, members.b0);
    });
  });
}

template <bool Sum, bool Dot, class T, class I>
struct RowPassLaunch {
  const RowPass<T, I>& P;
  cudaStream_t stream;

  unsigned depth(bool sum = Sum, bool dot = Dot) const {
    return blocks_aside(P.adds_up(sum, dot) ? 1 : P.batch);
  }

  template <int Lanes>
  void vector() const {
    const dim3 grid(blocks_for(P.rows.rows, kThreads / Lanes), 1, depth());
    LS_LAUNCH(grid, kThreads, stream, (P), vector_rows_kernel<Lanes, Sum, Dot, T, I>);
  }
  // About half as many lanes as an average row has entries: so few lanes idle on short rows.
  void vector() const {
    const int64_t mean = P.rows.nnz / P.rows.rows;
    if (mean < 6)
      vector<2>();
    else if (mean < 12)
      vector<4>();
    else if (mean < 32)
      vector<8>();
    else
      vector<32>();
  }

  template <int Lanes, int V>
  void columns() const {
    const unsigned tiles = Dot ? 1 : blocks_for(P.k, Lanes * V, 0xffff);
    const dim3 grid(blocks_for(P.rows.pieces(), kThreads / Lanes), tiles, depth());
    LS_LAUNCH(grid, kThreads, stream, (P), columns_kernel<Lanes, V, Sum, Dot, T, I>);
  }
  template <int V>
  void columns() const {
    if (P.k <= 4 * V)
      columns<4, V>();
    else if (P.k <= 8 * V)
      columns<8, V>();
    else
      columns<16, V>();
  }

  void stretches() const {
    const unsigned blocks = blocks_for(P.rows.stretches);
    if constexpr (Sum)
      LS_LAUNCH(dim3(blocks, 1, depth(true, false)), kStretchThreads, stream, (P),
                vector_stretches_kernel<T, I>);
    if constexpr (Dot)
      LS_LAUNCH(dim3(blocks, 1, depth(false, true)), kThreads, stream, (P), vector_entries_kernel<T, I>);
  }

  template <int Lanes>
  void carries() const {
    const dim3 grid(blocks_for(P.rows.pieces() * P.k, kThreads / Lanes), 1,
                    blocks_aside(P.y_step ? P.batch : 1));
    LS_LAUNCH(grid, kThreads, stream, (P), carries_kernel<Lanes, T, I>);
  }
};

// The pass, for at least one row, column and member of the batch.
template <bool Sum, bool Dot, class T, class I>
cudaError_t launch_row_pass(const RowPass<T, I>& P, cudaStream_t stream) {
  const RowPassLaunch<Sum, Dot, T, I> launch{P, stream};
  if (P.k > 1) {
    if (P.packs)
      launch.template columns<16 / sizeof(T)>();
    else
      launch.template columns<1>();
  } else if (P.rows.table) {
    launch.stretches();
  } else {
    launch.vector();
  }
  if constexpr (Sum)
    if (P.rows.table) {
      if (P.k == 1)
        launch.template carries<32>();
      else
        launch.template carries<1>();
    }
  return cudaGetLastError();
}

}  // namespace learnsolve::cuda
