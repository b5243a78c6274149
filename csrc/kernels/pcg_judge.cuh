// What is known of the columns of preconditioned conjugate gradients, and who decides about them: between two
// phases (pcg.cuh) `PcgJudge` adds up the partial sums, and makes of them the scalars of the next, or stops a
// column. Scalars never leave the device.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/chunk_pass.cuh"
#include "kernels/pcg_state.h"

namespace learnsolve::cuda {

// Variables, because a device must not call what makes them.
template <class T>
constexpr T kSmallest = std::numeric_limits<T>::min();
template <class T>
constexpr T kEpsilon = std::numeric_limits<T>::epsilon();

// Rows of `work`, one entry a column each. wipe: this p, or this r, is not finite, and becomes zero.
enum Work { kStep, kTurn, kKeep, kWipeP, kWipeR, kLength, kWork };

// Of all columns: carry (B, kCarry, k) and work (B, kWork, k). Of each member of the batch flags (B, 2): does
// a column run, and did one when the iteration began?
template <class T>
struct PcgColumns {
  T* carry;
  T* work;
  int* flags;
  int64_t k;
  LS_DEVICE T& at(int64_t b, Carry row, int64_t c) const { return carry[(b * kCarry + row) * k + c]; }
  LS_DEVICE T* now(int64_t b, Work row) const { return work + (b * kWork + row) * k; }
  LS_DEVICE int& active(int64_t b) const { return flags[2 * b]; }
  LS_DEVICE int& entered(int64_t b) const { return flags[2 * b + 1]; }
  LS_DEVICE bool runs(int64_t b, int64_t c) const { return at(b, kStop, c) == T(0); }
};

template <class T>
LS_DEVICE bool is_finite(T v) {
  return v - v == 0;
}

// What has just been summed: nothing; <b, b>; the first residual; <p, A p>; the new residual; <r, M r>.
enum class Judged { start, length, begin, product, residual, preconditioned };

template <class T>
struct PcgJudge {
  PcgColumns<T> columns;
  Judged what;
  Preconditioning kind;
  int64_t i, first;                  // iteration of this call, iterations before it
  T* norms;                          // of that iteration, for member 0; or null: another block writes it
  T* scalars;                        // likewise
  int64_t norms_step, scalars_step;  // from one member to the next

  // Partial sums that it looks at.
  LS_DEVICE int sums() const {
    if (what == Judged::start) return 0;
    return (what == Judged::begin || what == Judged::residual) && kind == Preconditioning::diagonal ? 2 : 1;
  }
  LS_DEVICE bool knows_rho() const {
    return kind == Preconditioning::none || kind == Preconditioning::diagonal;
  }
  LS_DEVICE bool skips(int64_t b) const {
    if (what == Judged::product) return !columns.active(b);
    if (what == Judged::residual || what == Judged::preconditioned) return !columns.entered(b);
    return false;
  }

  static LS_DEVICE Stop stop_of(T value, Stop not_positive) {
    if (!is_finite(value)) return Stop::non_finite;
    if (value >= kSmallest<T>) return Stop::running;
    return value > 0 ? Stop::rounding : not_positive;
  }
  LS_DEVICE void stop(int64_t b, int64_t c, Stop why, int64_t iteration) const {
    columns.at(b, kStop, c) = static_cast<T>(static_cast<int>(why));
    columns.at(b, kWhen, c) = static_cast<T>(iteration);
  }
  LS_DEVICE T& now(int64_t b, Work row, int64_t c) const { return columns.now(b, row)[c]; }

  // Column c, whose sums these are. Does it run on?
  LS_DEVICE bool column(int64_t b, int64_t c, double one, double two) const {
    switch (what) {
      case Judged::start: break;
      case Judged::length: now(b, kLength, c) = static_cast<T>(std::sqrt(one)); break;
      case Judged::begin: begin(b, c, static_cast<T>(std::sqrt(one))); break;
      case Judged::product: product(b, c, static_cast<T>(one)); break;
      case Judged::residual: residual(b, c, static_cast<T>(std::sqrt(one))); break;
      case Judged::preconditioned: advance(b, c, static_cast<T>(one)); break;
    }
    if ((what == Judged::begin || what == Judged::residual) && knows_rho())
      advance(b, c, static_cast<T>(kind == Preconditioning::none ? one : two));
    return what != Judged::length && columns.runs(b, c);  // which nobody knows before the first residual
  }
  // A column of a member that it skips.
  LS_DEVICE void idle(int64_t b, int64_t c) const {
    if (what == Judged::residual && norms) norms[b * norms_step + c] = columns.at(b, kNorm, c);
  }
  LS_DEVICE void finish(int64_t b, bool any) const {
    if (what != Judged::length) columns.active(b) = any;
    if (what == Judged::start) columns.entered(b) = 0;
    if (what == Judged::product || what == Judged::begin) columns.entered(b) = 1;
  }
  LS_DEVICE void finish_idle(int64_t b) const {
    if (what == Judged::product) columns.entered(b) = 0;
  }

 private:
  LS_DEVICE void begin(int64_t b, int64_t c, T size) const {
    const T length = now(b, kLength, c);
    if (norms) norms[b * norms_step + c] = size;
    columns.at(b, kNorm, c) = size;
    columns.at(b, kLow, c) = kEpsilon<T> * (size < length ? length : size);
    columns.at(b, kHigh, c) = size / kEpsilon<T>;
    columns.at(b, kRho, c) = columns.at(b, kStop, c) = columns.at(b, kWhen, c) = 0;
    now(b, kWipeR, c) = !is_finite(size);
    if (!is_finite(size))
      stop(b, c, Stop::non_finite, 0);
    else if (size <= columns.at(b, kLow, c))
      stop(b, c, Stop::rounding, 0);
  }

  LS_DEVICE void product(int64_t b, int64_t c, T pi) const {
    const T rho = columns.at(b, kRho, c), a = rho / pi;
    if (scalars) scalars[b * scalars_step + kScalarRho * columns.k + c] = rho;
    now(b, kStep, c) = now(b, kWipeP, c) = 0;
    if (!columns.runs(b, c)) return;
    Stop why = stop_of(pi, Stop::curvature);
    if (why == Stop::running && !is_finite(a)) why = Stop::non_finite;
    if (why == Stop::running && a == T(0)) why = Stop::rounding;
    if (why == Stop::running)
      now(b, kStep, c) = a;
    else
      stop(b, c, why, first + i);
    now(b, kWipeP, c) = why == Stop::non_finite;
  }

  LS_DEVICE void residual(int64_t b, int64_t c, T size) const {
    now(b, kWipeR, c) = 0;
    if (columns.runs(b, c)) {
      if (!is_finite(size)) {
        stop(b, c, Stop::non_finite, first + i);
        now(b, kStep, c) = 0;
        now(b, kWipeR, c) = 1;
      } else {
        columns.at(b, kNorm, c) = size;
        if (size <= columns.at(b, kLow, c))
          stop(b, c, Stop::rounding, first + i + 1);
        else if (size > columns.at(b, kHigh, c))
          stop(b, c, Stop::diverged, first + i + 1);
      }
    }
    if (norms) norms[b * norms_step + c] = columns.at(b, kNorm, c);
  }

  // rho and beta of a column that runs on; i = -1: before the first iteration.
  LS_DEVICE void advance(int64_t b, int64_t c, T found) const {
    const int64_t iteration = first + i + 1;
    T beta = 0, keep = 0;
    if (columns.runs(b, c)) {
      const Stop why = stop_of(found, Stop::preconditioner);
      if (why != Stop::running) {
        stop(b, c, why, iteration);
      } else {
        beta = iteration > 0 ? found / columns.at(b, kRho, c) : T(0);
        columns.at(b, kRho, c) = found;
        keep = 1;
      }
    }
    now(b, kTurn, c) = beta;
    now(b, kKeep, c) = keep;
    if (!scalars) return;
    scalars[b * scalars_step + kAlpha * columns.k + c] = now(b, kStep, c);
    scalars[b * scalars_step + kBeta * columns.k + c] = beta;
  }
};

struct JudgeScratch {
  double totals[2][kThreads];
};

// Member b is judged by `Judge` (PcgJudge; that of the adjoint). Before: all partial sums are written.
template <class Team, class T, class Judge>
LS_DEVICE void judge(const Team& team, const Judge& judged, int64_t b, int64_t chunks,
                     const Partials<T>& partials, JudgeScratch& scratch) {
  const int64_t k = judged.columns.k;
  const bool skips = judged.skips(b);
  team.sync();
  if (skips) {
    team.each([&](int lane) {
      for (int64_t c = lane; c < k; c += Team::size) judged.idle(b, c);
    });
    team.first([&] { judged.finish_idle(b); });
    team.sync();
    return;
  }
  const int width = columns_together(k), sums = judged.sums();
  typename Team::template Own<int> runs;
  for (int64_t c0 = 0; c0 < k; c0 += width) {
    for (int s = 0; s < sums; ++s)
      add_chunks(team, partials.at[s] + b * chunks * k, chunks, k, c0, width, scratch.totals[s]);
    team.each([&](int lane) {
      if (lane >= width || c0 + lane >= k) return;
      const double one = sums > 0 ? scratch.totals[0][lane] : 0, two = sums > 1 ? scratch.totals[1][lane] : 0;
      if (judged.column(b, c0 + lane, one, two)) runs[lane] = 1;
    });
    team.sync();
  }
  team.each([&](int lane) { scratch.totals[0][lane] = runs[lane]; });
  team.sync();
  add_slots(team, scratch.totals[0], width, 1);  // no other lane has a column
  team.first([&] { judged.finish(b, scratch.totals[0][0] > 0); });
  team.sync();
}

template <class T>
LS_KERNEL(kThreads)
judge_kernel(LS_ARGUMENT PcgJudge<T> judged, int64_t batch, int64_t chunks, Partials<T> partials) {
  LS_SHARED JudgeScratch scratch;
  const Block<kThreads> team;
  for_blocks(batch, [&](int64_t b) { judge(team, judged, b, chunks, partials, scratch); });
}

}  // namespace learnsolve::cuda
