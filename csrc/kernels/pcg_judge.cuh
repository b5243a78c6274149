// At the end of a pass of pcg.cuh `PcgJudge` gets the sums that it has made and applies the rules of
// pcg_column.cuh to each column. Scalars never leave the device.
#pragma once

#include "kernels/chunk_pass.cuh"
#include "kernels/pcg_column.cuh"

namespace learnsolve::cuda {

// Of all columns: carry (B, kCarry, k) and work (B, kWork, k). Of each member of the batch: does a column
// run, and did one when the iteration began?
template <class T>
struct PcgColumns {
  T* carry;
  T* work;
  int *active, *entered;
  int64_t k;
  Vectors<const T> row(Work row) const { return {work + row * k, kWork * k}; }
};

// What has just been summed: nothing; <b, b>; the first residual; <p, A p>; the new residual; <r, M r>.
enum class Judged { start, length, begin, product, residual, preconditioned };

template <class T>
struct PcgJudge {
  PcgColumns<T> columns;
  Judged what;
  Preconditioning kind;
  int64_t iteration;                 // -1 before the first one
  const T* target;                   // (B, k), or null
  T* norms;                          // of that iteration, for member 0; or null
  T* scalars;                        // likewise
  int64_t norms_step, scalars_step;  // from one member to the next

  // Partial sums that it reads.
  LS_DEVICE int sums() const {
    if (what == Judged::start) return 0;
    return (what == Judged::begin || what == Judged::residual) && kind == Preconditioning::diagonal ? 2 : 1;
  }
  LS_DEVICE bool skips(int64_t b) const {
    if (what == Judged::product) return !columns.active[b];
    if (what == Judged::residual || what == Judged::preconditioned) return !columns.entered[b];
    return false;
  }

  // Column c, whose sums these are. Does it run on?
  LS_DEVICE bool column(int64_t b, int64_t c, double one, double two) const {
    const PcgColumn<T> known = at(b, c);
    const T root = static_cast<T>(std::sqrt(one));
    switch (what) {
      case Judged::start: break;
      case Judged::length: known.now(kLength) = root; return false;  // before its stop is known
      case Judged::begin: known.begin(root, target ? target + b * columns.k + c : nullptr); break;
      case Judged::product: known.product(static_cast<T>(one)); break;
      case Judged::residual: known.residual(root); break;
      case Judged::preconditioned: known.advance(static_cast<T>(one)); break;
    }
    if (what == Judged::begin || what == Judged::residual) {
      if (kind == Preconditioning::none) known.advance(static_cast<T>(one));
      if (kind == Preconditioning::diagonal) known.advance(static_cast<T>(two));
    }
    return known.runs();
  }
  // A column of a member that it skips.
  LS_DEVICE void idle(int64_t b, int64_t c) const {
    const PcgColumn<T> known = at(b, c);
    if (what == Judged::product)
      known.now(kStep) = known.now(kKeep) = known.now(kWipeP) = known.now(kWipeR) = 0;
    if (what == Judged::residual) known.idle();
  }
  LS_DEVICE void finish(int64_t b, bool any) const {
    if (what != Judged::length) columns.active[b] = any;
    if (what == Judged::start) columns.entered[b] = 0;
    if (what == Judged::product || what == Judged::begin) columns.entered[b] = 1;
  }
  LS_DEVICE void finish_idle(int64_t b) const {
    if (what == Judged::product) columns.entered[b] = 0;
  }

 private:
  LS_DEVICE PcgColumn<T> at(int64_t b, int64_t c) const {
    return {columns.carry + b * kCarry * columns.k + c,
            columns.work + b * kWork * columns.k + c,
            scalars ? scalars + b * scalars_step + c : nullptr,
            norms ? norms + b * norms_step + c : nullptr,
            columns.k,
            iteration};
  }
};

// A pass, or the end of a product, whose sums are for a judge (PcgJudge; that of the adjoint). The block that
// is the last one to work on a member judges it.
template <class T, class Pass, class Judge>
struct WithJudge : Pass {
  Judge judge;
  Partials<T> partials;  // those of the pass
  unsigned* arrived;     // one for each member

  LS_DEVICE void conclude(int64_t b, const Chunks& chunks) const {
    if (arrives_last(arrived + b, chunks.count)) judged(b, chunks.count);
  }

 private:
  LS_DEVICE_APART void judged(int64_t b, int64_t chunks) const {
    LS_SHARED(totals, double[2][kThreads]);
    const int64_t k = judge.columns.k;
    const int lane = static_cast<int>(threadIdx.x), width = columns_together(k), sums = judge.sums();
    if (judge.skips(b)) {
      for (int64_t c = lane; c < k; c += kThreads) judge.idle(b, c);
      if (lane == 0) judge.finish_idle(b);
      return;
    }
    bool runs = false;
    for (int64_t c0 = 0; c0 < k; c0 += width) {
      for (int s = 0; s < sums; ++s)
        add_chunks(partials.at[s] + b * chunks * k, chunks, k, c0, width, totals[s]);
      if (lane < width && c0 + lane < k)
        runs |= judge.column(b, c0 + lane, sums > 0 ? totals[0][lane] : 0, sums > 1 ? totals[1][lane] : 0);
      __syncthreads();
    }
    const bool any = __syncthreads_or(runs) != 0;
    if (lane == 0) judge.finish(b, any);
  }
};

}  // namespace learnsolve::cuda
