// At the end of a pass of pcg_adjoint.cuh `AdjointJudge` gets the sum that it has made and computes the
// scalars of each column (pcg_adjoint_column.cuh). They stay on the device.
#pragma once

#include "kernels/pcg_adjoint_column.cuh"
#include "kernels/pcg_judge.cuh"

namespace learnsolve::cuda {

template <class T>
struct AdjointColumns {
  T* bars;     // (B, kBars, k)
  T* work;     // (B, kAdjointWork, k)
  int* flags;  // (B): does a column act?
  int64_t k;
  // Of kAdjointWork: none.
  Vectors<const T> row(AdjointWork row) const {
    return {row == kAdjointWork ? nullptr : work + row * k, kAdjointWork * k};
  }
};

// What has just been summed: numbers that are not zero; alphabar of the residual; <pbar, before>.
enum class Adjoining { learns, residual, direction };

template <class T>
struct AdjointJudge {
  AdjointColumns<T> columns;
  Adjoining what;
  bool prepares;  // there is an iteration i to come, or (-1) the first residual; else i is the one that runs
  bool before;    // there were iterations before those of this call
  int64_t i, count;
  const T* scalars;  // (B, count, kScalars, k)
  const T* norms;    // (B, norms of this call, k)
  const T* gnorms;   // likewise, or null

  LS_DEVICE int sums() const { return 1; }
  LS_DEVICE bool skips(int64_t b) const {
    return what == Adjoining::residual && (i < 0 || columns.flags[b] == 0);
  }
  LS_DEVICE void idle(int64_t, int64_t) const {}
  LS_DEVICE void finish_idle(int64_t) const {}
  LS_DEVICE void finish(int64_t b, bool any) const {
    if (prepares) columns.flags[b] = any;
  }

  // Does column c act?
  LS_DEVICE bool column(int64_t b, int64_t c, double one, double) const {
    const PcgAdjointColumn<T> known = at(b, c);
    switch (what) {
      case Adjoining::learns: known.now(kLearns) = one != 0 || has_cotangent(known, b, c); break;
      case Adjoining::residual: known.residual(static_cast<T>(one)); break;
      case Adjoining::direction: known.direction(static_cast<T>(one)); break;
    }
    const bool learns = known.now(kLearns) != T(0);
    if (prepares) i < 0 ? known.first(learns) : known.prepare(learns);
    return known.acts();
  }

 private:
  LS_DEVICE int64_t n_norms() const { return count + (before ? 0 : 1); }
  // i = -1: the first residual, which has no scalars.
  LS_DEVICE PcgAdjointColumn<T> at(int64_t b, int64_t c) const {
    const int64_t k = columns.k, norm = (b * n_norms() + i + (before ? 0 : 1)) * k + c;
    return {columns.bars + b * kBars * k + c,
            columns.work + b * kAdjointWork * k + c,
            scalars + (b * count + (i < 0 ? 0 : i)) * kScalars * k + c,
            norms + norm,
            gnorms ? gnorms + norm : nullptr,
            k,
            k};
  }
  LS_DEVICE bool has_cotangent(const PcgAdjointColumn<T>& known, int64_t b, int64_t c) const {
    bool any = false;
    for (int row = 0; row < kBars; ++row) any |= known.bar(static_cast<Bar>(row)) != T(0);
    if (gnorms)
      for (int64_t j = 0; j < n_norms(); ++j) any |= gnorms[(b * n_norms() + j) * columns.k + c] != T(0);
    return any;
  }
};

}  // namespace learnsolve::cuda
