// What the adjoint of preconditioned conjugate gradients knows of the columns, and who decides about them:
// between two phases (pcg_adjoint.cuh) `AdjointJudge` adds up the partial sums, and makes of them the scalars
// of the next. They stay on the device.
#pragma once

#include "kernels/pcg_judge.cuh"

namespace learnsolve::cuda {

// Rows of `work`, one entry a column each. Inverse: of alpha; Turned: -alphabar alpha / rho.
enum AdjointWork {
  kActs,
  kLearns,
  kAlphaNow,
  kBetaNow,
  kRhobarNow,
  kNormbar,
  kInverse,
  kPibar,
  kTurned,
  kAdjointWork
};

template <class T>
struct AdjointColumns {
  T* bars;     // (B, kBars, k)
  T* work;     // (B, kAdjointWork, k)
  int* flags;  // (B): does a column act?
  int64_t k;
  LS_DEVICE T& bar(int64_t b, Bar row, int64_t c) const { return bars[(b * kBars + row) * k + c]; }
  LS_DEVICE T* now(int64_t b, AdjointWork row) const { return work + (b * kAdjointWork + row) * k; }
};

// Which columns learn; what an iteration needs; after its residual.
enum class Adjoining { learns, iteration, residual };

template <class T>
struct AdjointJudge {
  AdjointColumns<T> columns;
  Adjoining what;
  bool collects;  // <pbar, p> of the iteration after this one has just been summed
  bool prepares;  // there is an iteration i to come; i = -1: the first residual
  bool before;    // there were iterations before those of this call
  int64_t i, count;
  const T* scalars;  // (B, count, kScalars, k)
  const T* norms;    // (B, norms of this call, k)
  const T* gnorms;   // likewise, or null

  LS_DEVICE int sums() const { return what == Adjoining::iteration && !collects ? 0 : 1; }
  LS_DEVICE bool skips(int64_t b) const { return what == Adjoining::residual && columns.flags[b] == 0; }
  LS_DEVICE void idle(int64_t, int64_t) const {}
  LS_DEVICE void finish_idle(int64_t) const {}
  LS_DEVICE void finish(int64_t b, bool any) const {
    if (what == Adjoining::iteration && prepares) columns.flags[b] = any;
  }

  // Does column c act?
  LS_DEVICE bool column(int64_t b, int64_t c, double one, double) const {
    const T sum = static_cast<T>(one);
    if (what == Adjoining::learns) {
      now(b, kLearns, c) = one != 0 || has_cotangent(b, c) ? T(1) : T(0);
      return false;
    }
    if (what == Adjoining::residual) {
      residual(b, c, sum);
    } else {
      if (collects) columns.bar(b, kBetabar, c) = now(b, kActs, c) != T(0) ? sum : T(0);
      if (prepares) i < 0 ? first_residual(b, c) : prepare(b, c);
    }
    return now(b, kActs, c) != T(0);
  }

 private:
  LS_DEVICE T& now(int64_t b, AdjointWork row, int64_t c) const { return columns.now(b, row)[c]; }
  LS_DEVICE T scalar(int64_t b, Scalar row, int64_t c) const {
    return scalars[((b * count + i) * kScalars + row) * columns.k + c];
  }
  LS_DEVICE int64_t n_norms() const { return count + (before ? 0 : 1); }
  // The norm of the r after iteration i; i = -1: of the first r.
  LS_DEVICE int64_t norm_at(int64_t b, int64_t c) const {
    return (b * n_norms() + i + (before ? 0 : 1)) * columns.k + c;
  }
  LS_DEVICE bool has_cotangent(int64_t b, int64_t c) const {
    bool any = false;
    for (int row = 0; row < kBars; ++row) any |= columns.bar(b, static_cast<Bar>(row), c) != T(0);
    if (gnorms)
      for (int64_t j = 0; j < n_norms(); ++j) any |= gnorms[(b * n_norms() + j) * columns.k + c] != T(0);
    return any;
  }

  // The norm has no derivative at zero; zero is its subgradient of least norm.
  LS_DEVICE void norm_cotangent(int64_t b, int64_t c) const {
    T g = columns.bar(b, kHeld, c);
    if (gnorms) g += gnorms[norm_at(b, c)];
    const T norm = norms[norm_at(b, c)];
    now(b, kNormbar, c) = g == T(0) || norm == T(0) || !is_finite(norm) ? T(0) : g / norm;
    columns.bar(b, kHeld, c) = 0;
  }

  LS_DEVICE void prepare(int64_t b, int64_t c) const {
    const bool learns = now(b, kLearns, c) != T(0);
    const T a = learns ? scalar(b, kAlpha, c) : T(0), beta = scalar(b, kBeta, c);
    now(b, kAlphaNow, c) = a;
    now(b, kBetaNow, c) = beta;
    now(b, kActs, c) = a != T(0);
    now(b, kPibar, c) = now(b, kTurned, c) = 0;
    if (a == T(0)) {
      if (learns && gnorms) columns.bar(b, kHeld, c) += gnorms[norm_at(b, c)];
      now(b, kRhobarNow, c) = now(b, kNormbar, c) = now(b, kInverse, c) = columns.bar(b, kRhobar, c) = 0;
      return;
    }
    norm_cotangent(b, c);
    const T betabar = columns.bar(b, kBetabar, c) / scalar(b, kScalarRho, c);
    now(b, kRhobarNow, c) = columns.bar(b, kRhobar, c) + betabar;
    columns.bar(b, kRhobar, c) = -betabar * beta;
    now(b, kInverse, c) = T(1) / a;
  }

  LS_DEVICE void first_residual(int64_t b, int64_t c) const {
    const bool learns = now(b, kLearns, c) != T(0);
    now(b, kActs, c) = learns;
    now(b, kRhobarNow, c) = now(b, kNormbar, c) = 0;
    if (!learns) return;
    norm_cotangent(b, c);
    now(b, kRhobarNow, c) = columns.bar(b, kRhobar, c);
  }

  LS_DEVICE void residual(int64_t b, int64_t c, T alphabar) const {
    if (now(b, kActs, c) == T(0)) return;
    const T a = now(b, kAlphaNow, c), over_pi = alphabar * a / scalar(b, kScalarRho, c);
    columns.bar(b, kRhobar, c) += over_pi;
    now(b, kPibar, c) = -over_pi * a;
    now(b, kTurned, c) = -over_pi;
  }
};

template <class T>
LS_KERNEL(kThreads)
adjoint_judge_kernel(LS_ARGUMENT AdjointJudge<T> judged, int64_t batch, int64_t chunks,
                     Partials<T> partials) {
  LS_SHARED JudgeScratch scratch;
  const Block<kThreads> team;
  for_blocks(batch, [&](int64_t b) { judge(team, judged, b, chunks, partials, scratch); });
}

}  // namespace learnsolve::cuda
