// Triangular systems by levels, whose rows depend on earlier levels alone: a launch for each wide one, one
// block for all narrow ones between, with a barrier after each, or one launch for all of some width, whose
// rows wait for one another.
#pragma once

#include "kernels/triangular.cuh"
#include "ops/device.cuh"

namespace learnsolve::triangular {

// Level number l holds order[at[l]] to order[at[l + 1]], each row solved by `lanes` lanes: 1, 8 or 32.
struct LevelsOnHost {
  const int64_t* at;
  int64_t count, lanes;
};

// On the device where levels begin, and where each part of one does: if there are parts, they are worked
// through by ticket.
template <class T, class I>
struct LevelSystem {
  cuda::Triangle<T, I> S;
  cuda::Sides<T> v;
  const I* order;
  const I* bounds;
  const I* parts;
  int64_t n_parts, batch;
};

// Numbers of eight bytes that parts need room for: that of tickets, and those that hold a flag for each
// result.
inline int64_t level_room(int64_t rows, int64_t batch, int64_t k) { return 1 + (batch * rows * k + 1) / 2; }

template <class T, class I>
void solve_levels(const OnDevice& device, const LevelSystem<T, I>& system, const LevelsOnHost& levels,
                  unsigned long long* room);

}  // namespace learnsolve::triangular
