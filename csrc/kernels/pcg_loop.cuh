// All iterations of preconditioned conjugate gradients (pcg.cuh) in one persistent kernel, for systems that
// the cache of a device holds. Every block keeps the state of the columns in its own shared memory and judges
// them itself: the same sums in the same order give the same decisions, with one barrier fewer.
#pragma once

#include "kernels/pcg.cuh"

namespace learnsolve::cuda {

constexpr int kLoopColumns = 32;  // of all members of the batch

template <class T>
struct LoopScratch {
  PassScratch<T, 2> pass;
  JudgeScratch judged;
  T carry[kCarry * kLoopColumns];
  T work[kWork * kLoopColumns];
  int flags[2 * kLoopColumns];
};

template <class T, class I>
struct PcgLoop {
  PcgForward<T> P;
  RowsOf<T, I> A, L, Lt;
  int64_t values_step;
  Chunks chunks, wide;  // of the rows of A and L, and of L^T
};

#ifdef __CUDACC__
LS_DEVICE bool in_first_block() { return blockIdx.x == 0; }
#else
inline bool in_first_block() { return host_grid.block == 0; }
#endif

// Lanes, V: as for product_chunk.
template <int Lanes, int V, class T, class I>
LS_KERNEL(kThreads, 2)
pcg_loop_kernel(LS_ARGUMENT PcgLoop<T, I> loop) {
  constexpr bool one = Lanes > 0;
  constexpr int pack = one ? kPack<T> : V;
  LS_SHARED LoopScratch<T> scratch;
  const Block<kThreads> team;
  const PcgForward<T>& P = loop.P;
  const PcgColumns<T> known{scratch.carry, scratch.work, scratch.flags, P.k};
  const bool writes = in_first_block();
  const int64_t nk = P.nk(), all = P.batch * P.k;
  team.each([&](int lane) {
    for (int64_t e = lane; e < kCarry * all; e += kThreads) scratch.carry[e] = P.columns.carry[e];
    for (int64_t e = lane; e < kWork * all; e += kThreads) scratch.work[e] = P.columns.work[e];
    for (int64_t e = lane; e < 2 * P.batch; e += kThreads) scratch.flags[e] = P.columns.flags[e];
  });
  team.sync();

  const auto pass_over = [&](const auto& make, const Partials<T>& partials) {
    for_blocks(loop.chunks.count * P.batch, [&](int64_t item) {
      const int64_t b = item / loop.chunks.count, chunk = item % loop.chunks.count;
      const auto pass = make(b);
      if (!pass.skips())
        pass_chunk<one, pack>(team, pass, loop.chunks.begin(chunk), loop.chunks.end(chunk), P.k, P.packs,
                              partials, item, scratch.pass);
    });
  };
  const auto product = [&](const RowsOf<T, I>& rows, int64_t step, const Chunks& chunks, const auto& from,
                           const auto& make, const Partials<T>& partials) {
    for_blocks(chunks.count * P.batch, [&](int64_t item) {
      const int64_t b = item / chunks.count, chunk = item % chunks.count;
      const auto pass = make(b);
      if (!pass.skips())
        product_chunk<Lanes, V>(team, RowsOf<T, I>{rows.ptr, rows.idx, rows.values + b * step}, from(b), pass,
                                chunks.begin(chunk), chunks.end(chunk), P.k, P.packs, partials, item,
                                scratch.pass);
    });
  };
  const auto judge_all = [&](Judged what, int64_t i, const Partials<T>& partials) {
    const PcgJudge<T> judged = P.judge(known, what, i, writes);
    for (int64_t b = 0; b < P.batch; ++b) judge(team, judged, b, loop.chunks.count, partials, scratch.judged);
  };

  for (int64_t i = 0; i < P.iterations; ++i) {
    bool moves = P.store;
    for (int64_t b = 0; b < P.batch; ++b) moves = moves || known.active(b) != 0;
    if (moves) {
      product(
          loop.A, loop.values_step, loop.chunks, [&](int64_t b) { return P.p_at(b, i); },
          [&](int64_t b) { return PcgProductPass<T, 1>{P.p_at(b, i), P.q + b * nk, known.active(b) != 0}; },
          P.curvature());
      grid_sync();
    }
    judge_all(Judged::product, i, P.curvature());
    if (moves) {
      if (P.kind == Preconditioning::diagonal)
        pass_over([&](int64_t b) { return P.template residual<true>(known, b, i); }, P.of_residual());
      else
        pass_over([&](int64_t b) { return P.template residual<false>(known, b, i); }, P.of_residual());
      grid_sync();
    }
    judge_all(Judged::residual, i, P.of_residual());
    if (moves && P.has_factor()) {
      product(
          loop.Lt, P.m_step, loop.wide, [&](int64_t b) { return P.r_at(b, i + 1); },
          [&](int64_t b) {
            return PcgProductPass<T, 0>{nullptr, P.w + b * P.width * P.k, known.entered(b) != 0};
          },
          {});
      grid_sync();
      product(
          loop.L, P.m_step, loop.chunks, [&](int64_t b) { return P.w + b * P.width * P.k; },
          [&](int64_t b) {
            return PcgProductPass<T, 1>{P.r_at(b, i + 1), P.z + b * nk, known.entered(b) != 0};
          },
          P.of_preconditioned());
      grid_sync();
      judge_all(Judged::preconditioned, i, P.of_preconditioned());
    }
    if (moves || i + 1 == P.iterations) pass_over([&](int64_t b) { return P.update(known, b, i); }, {});
    if (moves && i + 1 < P.iterations) grid_sync();
  }
  if (writes)
    team.each([&](int lane) {
      for (int64_t e = lane; e < kCarry * all; e += kThreads) P.columns.carry[e] = scratch.carry[e];
    });
}

}  // namespace learnsolve::cuda
