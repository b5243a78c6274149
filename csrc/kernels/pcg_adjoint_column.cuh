// The scalars of the adjoint of preconditioned conjugate gradients, of one column in one iteration, for every
// device. pcg_adjoint.h has the formulas.
#pragma once

#include "kernels/pcg_column.cuh"

namespace learnsolve {

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
struct PcgAdjointColumn {
  T* bars;           // rows of Bar, `all` apart, as those of scalars
  T* work;           // rows of AdjointWork, `chosen` apart
  const T* scalars;  // rows of Scalar, of this iteration
  const T* norm;     // of the residual after it
  const T* gnorm;    // its cotangent, or null
  int64_t all, chosen;

  LS_BOTH T& bar(Bar row) const { return bars[row * all]; }
  LS_BOTH T& now(AdjointWork row) const { return work[row * chosen]; }
  LS_BOTH bool acts() const { return now(kActs) != T(0); }

  // What the iteration needs. A column takes part in it if it has a cotangent (`learns`) and did not stand
  // still.
  LS_BOTH void prepare(bool learns) const {
    const T alpha = learns ? scalars[kAlpha * all] : T(0), beta = scalars[kBeta * all];
    now(kAlphaNow) = alpha;
    now(kBetaNow) = beta;
    now(kActs) = alpha != T(0);
    now(kPibar) = now(kTurned) = 0;
    if (alpha == T(0)) {
      if (learns && gnorm) bar(kHeld) += *gnorm;
      now(kRhobarNow) = now(kNormbar) = now(kInverse) = bar(kRhobar) = 0;
      return;
    }
    norm_cotangent();
    const T betabar = bar(kBetabar) / scalars[kScalarRho * all];
    now(kRhobarNow) = bar(kRhobar) + betabar;
    bar(kRhobar) = -betabar * beta;
    now(kInverse) = T(1) / alpha;
  }

  // What z_0 = M r_0 needs.
  LS_BOTH void first(bool learns) const {
    now(kActs) = learns;
    now(kRhobarNow) = now(kNormbar) = 0;
    if (!learns) return;
    norm_cotangent();
    now(kRhobarNow) = bar(kRhobar);
  }

  // alphabar is known.
  LS_BOTH void residual(T alphabar) const {
    if (!acts()) return;
    const T over_pi = alphabar * now(kAlphaNow) / scalars[kScalarRho * all];
    bar(kRhobar) += over_pi;
    now(kPibar) = -over_pi * now(kAlphaNow);
    now(kTurned) = -over_pi;
  }

  // <pbar, p> with the p before is known.
  LS_BOTH void direction(T sum) const { bar(kBetabar) = acts() ? sum : T(0); }

 private:
  // The norm has no derivative at zero; zero is its subgradient of least norm.
  LS_BOTH void norm_cotangent() const {
    T g = bar(kHeld);
    if (gnorm) g += *gnorm;
    now(kNormbar) = g == T(0) || *norm == T(0) || !is_finite(*norm) ? T(0) : g / *norm;
    bar(kHeld) = 0;
  }
};

}  // namespace learnsolve
