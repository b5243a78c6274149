// What preconditioned conjugate gradients know of a column, and their adjoint: the same on every device.
#pragma once

#include <cstdint>

namespace learnsolve {

enum class Preconditioning : int64_t { none, diagonal, product, triangular };

// Why a column has stopped. It keeps x and r, and adds nothing to any gradient from there on.
enum class Stop : int { running, rounding, curvature, preconditioner, non_finite, diverged };

// Rows of `carry`, one entry a column each.
enum Carry { kRho, kNorm, kLow, kHigh, kStop, kWhen, kCarry };
// Rows of `scalars`, for each iteration. alpha = 0: the column stood still.
enum Scalar { kScalarRho, kAlpha, kBeta, kScalars };

// Rows of `bars`: cotangent of rho, <pbar, p> with the p before, and the cotangents of the norms of a column
// that stands still, which are all that of the norm it stopped with.
enum Bar { kRhobar, kBetabar, kHeld, kBars };

// Iterations whose contributions to the gradient on a pattern are added at once. For N = 32768 tridiagonal 2
// to 16 are within 5 % on a CPU, 32 take 1.7 times as long: the vectors that wait no longer fit the cache.
constexpr int64_t kPairs = 8;

}  // namespace learnsolve
