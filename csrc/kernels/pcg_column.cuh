// When a column of preconditioned conjugate gradients stops, and the scalars of one that goes on: the only
// statement of these rules in C++, for every device. In the order of an iteration:
//
//     first ||r||       non-finite; rounding: at or below the target or the rounding level of b - A x
//     rho = <r, M r>    non-finite; preconditioner: not positive; rounding: below the smallest normal number
//     pi = <p, A p>     non-finite; curvature: not positive; rounding: below the smallest normal number
//     alpha = rho / pi  non-finite; rounding: zero
//     ||r||             non-finite; rounding: at or below `low`; diverged: above `high`
//
// `reference_pcg` in learnsolve/ops/pcg.py states them in operations that autograd differentiates.
#pragma once

#include <limits>

#include "kernels/views.h"

namespace learnsolve {

// Variables, because device code must not call the functions that return them.
template <class T>
constexpr T kSmallest = std::numeric_limits<T>::min();
template <class T>
constexpr T kEpsilon = std::numeric_limits<T>::epsilon();

template <class T>
LS_BOTH bool is_finite(T v) {
  return v - v == 0;
}

// One column. Its numbers lie k apart in `carry`, `work` and `scalars`.
template <class T>
struct PcgColumn {
  T* carry;    // rows of Carry
  T* work;     // rows of Work
  T* scalars;  // rows of Scalar, of this iteration; or null
  T* norms;    // the norm after this iteration; or null
  int64_t k;
  int64_t iteration;  // its number, -1 before the first one

  LS_BOTH T& at(Carry row) const { return carry[row * k]; }
  LS_BOTH T& now(Work row) const { return work[row * k]; }
  LS_BOTH bool runs() const { return at(kStop) == T(0); }

  // The first residual has norm `size`, b the norm kRhsNorm where x is not zero. A `target` (or null) is the
  // norm to stop at; without one a column runs to the rounding level. With one, the caller measures the true
  // residual, and the level is that of the first residual.
  LS_BOTH void begin(T size, const T* target) const {
    const T length = now(kRhsNorm), larger = size < length ? length : size, level = kEpsilon<T> * larger;
    const T asked = target ? *target : T(0), own = target ? kEpsilon<T> * size : level;
    at(kNorm) = size;
    at(kLow) = own < asked ? asked : own;
    at(kHigh) = (target ? larger : size) / kEpsilon<T>;
    at(kRho) = at(kStop) = at(kWhen) = 0;
    now(kClearR) = !is_finite(size);
    if (!is_finite(size))
      stop(Stop::non_finite, 0);
    else if (size <= level || size <= asked)
      stop(Stop::rounding, 0);
    if (norms) *norms = size;
  }

  // pi = <p, A p> is known: alpha.
  LS_BOTH void product(T pi) const {
    const T rho = at(kRho), alpha = rho / pi;
    if (scalars) scalars[kScalarRho * k] = rho;
    now(kCurrentAlpha) = now(kClearP) = 0;
    if (!runs()) return;
    Stop why = stop_of(pi, Stop::curvature);
    if (why == Stop::running && !is_finite(alpha)) why = Stop::non_finite;
    if (why == Stop::running && alpha == T(0)) why = Stop::rounding;
    if (why == Stop::running)
      now(kCurrentAlpha) = alpha;
    else
      stop(why, iteration);
    now(kClearP) = why == Stop::non_finite;
  }

  // The residual after the step has norm `size`.
  LS_BOTH void residual(T size) const {
    now(kClearR) = 0;
    if (runs()) {
      if (!is_finite(size)) {
        stop(Stop::non_finite, iteration);
        now(kCurrentAlpha) = 0;
        now(kClearR) = 1;
      } else {
        at(kNorm) = size;
        if (size <= at(kLow))
          stop(Stop::rounding, iteration + 1);
        else if (size > at(kHigh))
          stop(Stop::diverged, iteration + 1);
      }
    }
    idle();
  }
  // A column whose norm stays.
  LS_BOTH void idle() const {
    if (norms) *norms = at(kNorm);
  }

  // rho = <r, M r> of the iteration to come is known: beta.
  LS_BOTH void advance(T rho) const {
    T beta = 0, keep = 0;
    if (runs()) {
      const Stop why = stop_of(rho, Stop::preconditioner);
      if (why != Stop::running) {
        stop(why, iteration + 1);
      } else {
        beta = iteration + 1 > 0 ? rho / at(kRho) : T(0);
        at(kRho) = rho;
        keep = 1;
      }
    }
    now(kCurrentBeta) = beta;
    now(kContinues) = keep;
    if (!scalars) return;
    scalars[kAlpha * k] = now(kCurrentAlpha);
    scalars[kBeta * k] = beta;
  }

 private:
  LS_BOTH void stop(Stop why, int64_t when) const {
    at(kStop) = static_cast<T>(static_cast<int>(why));
    at(kWhen) = static_cast<T>(when);
  }
  // Can the method divide by this inner product?
  static LS_BOTH Stop stop_of(T value, Stop not_positive) {
    if (!is_finite(value)) return Stop::non_finite;
    if (value >= kSmallest<T>) return Stop::running;
    return value > 0 ? Stop::rounding : not_positive;
  }
};

// The scalars of the adjoint of preconditioned conjugate gradients, of one column in one iteration, for every
// device. pcg.h has the formulas.

// Rows of `work`, one entry a column each. kInverse: 1 / alpha; kAlphabarTerm: -alphabar alpha / rho.
enum AdjointWork {
  kActs,
  kLearns,
  kAlphaNow,
  kBetaNow,
  kRhobarNow,
  kNormbar,
  kInverse,
  kPibar,
  kAlphabarTerm,
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
    now(kPibar) = now(kAlphabarTerm) = 0;
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
    now(kAlphabarTerm) = -over_pi;
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
