// What preconditioned conjugate gradients store for each column, and their adjoint: the same on every device.
#pragma once

#include <cstdint>

namespace learnsolve {

enum class Preconditioning : int64_t { none, diagonal, product, triangular };

// Why a column has stopped (pcg_column.cuh has the rules). It keeps x and r, and adds nothing to any gradient
// from there on.
enum class Stop : int { running, rounding, curvature, preconditioner, non_finite, diverged };

// Rows of `carry`, one entry a column each: rho, the norm of r, where it stops (low, high), and why and when.
enum Carry { kRho, kNorm, kLow, kHigh, kStop, kWhen, kCarry };
// Rows of `work`: alpha, beta, 1 if p goes on, 1 if p or r is not finite and becomes zero, ||b||.
enum Work { kStep, kTurn, kKeep, kWipeP, kWipeR, kLength, kWork };
// Rows of `scalars`, for each iteration. alpha = 0: the column stood still.
enum Scalar { kScalarRho, kAlpha, kBeta, kScalars };

// Rows of `bars`: cotangent of rho, <pbar, p> with the p before, and the cotangents of the norms of a column
// that stands still, which all belong to the norm it stopped with.
enum Bar { kRhobar, kBetabar, kHeld, kBars };

// Iterations whose contributions to the gradient on a pattern are added at once. For N = 32768 tridiagonal 2
// to 16 are within 5 % on a CPU, 32 take 1.7 times as long: the vectors that wait no longer fit the cache.
constexpr int64_t kPairs = 8;

}  // namespace learnsolve
