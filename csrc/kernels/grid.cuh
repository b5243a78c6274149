// Sums over rows: rows are cut into chunks, whose number depends on that of the rows alone. One block adds up
// each chunk, in a fixed tree, and writes a partial sum a column; the next launch adds up all partials in a
// fixed order (add_chunks). So sums have the same bits whatever the device. As on the host
// (ops/richardson.h), partial sums are in the numbers' own type and the sum of partials in double.
#pragma once

#include <type_traits>

#include "kernels/launch.cuh"

namespace learnsolve::cuda {

// Rows begin(c) <= i < end(c), 0 <= c < count. At least one chunk, so that a total is written for no rows.
struct Chunks {
  static constexpr int64_t kMost = 1024, kFewestRows = 128;
  int64_t rows = 0, size = kFewestRows, count = 1;

  Chunks() = default;
  explicit Chunks(int64_t rows_)
      : rows(rows_),
        size(std::max(kFewestRows, ((rows_ + kMost - 1) / kMost + 31) / 32 * 32)),
        count(std::max<int64_t>((rows_ + size - 1) / size, 1)) {}
  LS_BOTH int64_t begin(int64_t c) const { return c * size; }
  LS_BOTH int64_t end(int64_t c) const { return c * size + size < rows ? c * size + size : rows; }
};

// Columns whose totals a block adds up together: a power of two.
LS_BOTH int columns_together(int64_t k) {
  int width = 1;
  while (width < 32 && width < k) width *= 2;
  return width;
}

// In shared memory, slots (a power of two) of `width` numbers: parts[w] becomes the sum over the slots of
// their number w, in a fixed tree. All threads must call it, after team.sync(); afterwards all of them may
// read the sums.
template <class Team, class T>
LS_DEVICE void add_slots(const Team& team, T* parts, int slots, int width) {
  for (int h = slots / 2; h > 0; h /= 2) {
    team.each([&](int lane) {
      for (int e = lane; e < h * width; e += Team::size) parts[e] += parts[e + h * width];
    });
    team.sync();
  }
}

// Totals of the columns c0 <= c < c0 + width of partials, chunks x k: shared[c - c0]. `shared` holds
// Team::size numbers; before it is written again: team.sync().
template <class Team, class T>
LS_DEVICE void add_chunks(const Team& team, const T* partials, int64_t chunks, int64_t k, int64_t c0,
                          int width, double* shared) {
  const int slots = Team::size / width;
  team.each([&](int lane) {
    const int64_t c = c0 + lane % width;
    double sum = 0;
    if (c < k)
      for (int64_t chunk = lane / width; chunk < chunks; chunk += slots)
        sum += static_cast<double>(partials[chunk * k + c]);
    shared[lane] = sum;
  });
  team.sync();
  add_slots(team, shared, slots, width);
}

// f(team, slot, i) for begin <= i < end by the teams of one block, of which this is number `slot`: always the
// same one for the same row.
template <int Lanes, class F>
LS_DEVICE void for_teams(int64_t begin, int64_t end, const F& f) {
  constexpr int teams = kThreads / Lanes;
  const Team<Lanes> team;
  const int slot = static_cast<int>(threadIdx.x) / Lanes;
  for (int64_t i = begin + slot; i < end; i += teams) f(team, slot, i);
}

}  // namespace learnsolve::cuda
