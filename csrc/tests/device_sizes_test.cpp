// Sizes beyond 2^31, by the arithmetic alone: arrays that are functions of the index, in no memory.
#include <random>

#include "kernels/spgemm.cuh"
#include "tests/check.h"

namespace learnsolve::test {
namespace {

using namespace learnsolve::cuda;

// Rows of `length` entries each but for one, which has more.
struct Rows {
  int64_t length, special, more;
  int64_t operator[](int64_t i) const { return i * length + (i > special ? more : 0); }
};

// What merge_path of learnsolve/matrix/device.py makes of them.
struct Lines {
  Rows ptr;
  int64_t rows, items, width;
  int64_t operator[](int64_t n) const {
    const int64_t at = std::min(n / 2 * width, items), row = rows_ended(ptr, 0, rows, at);
    return n % 2 == 0 ? row : at - row;
  }
  explicit operator bool() const { return true; }
};

// Pieces follow one another from the first item to the last, all of one length: so every entry lies in one
// and every row ends in one.
void large_schedule(Random& random, const Rows& ptr, int64_t rows, const std::string& name) {
  const int64_t nnz = ptr[rows], items = rows + nnz, width = 896, stretches = (items + width - 1) / width;
  for (const int parts : {1, 4}) {
    const Schedule<int64_t, Rows, Lines> S{ptr, {ptr, rows, items, width}, rows, nnz, stretches, 896, parts};
    std::vector<int64_t> some{0, 1, S.pieces() - 2, S.pieces() - 1};
    const int64_t first_of_special = (ptr[ptr.special] + ptr.special) / (width / parts);
    for (int64_t d = -2; d < 3; ++d)
      some.push_back(std::clamp<int64_t>(first_of_special + d, 0, S.pieces() - 1));
    std::uniform_int_distribution<int64_t> draw(0, S.pieces() - 1);
    for (int n = 0; n < 500; ++n) some.push_back(draw(random));
    require(S.point(0).row == 0 && S.point(0).entry == 0, name + ": the path begins elsewhere");
    require(S.point(S.pieces()).row == rows && S.point(S.pieces()).entry == nnz,
            name + ": it ends elsewhere");
    for (const int64_t s : some) {
      const PathPiece piece = S.piece(s);
      const int64_t length = piece.last.row + piece.last.entry - piece.first.row - piece.first.entry;
      require(piece.first.row + piece.first.entry == std::min(s * (width / parts), items), name + ": a gap");
      require(length == std::min(width / parts, items - s * (width / parts)) || length == 0,
              name + ": a piece of another length");
      require(piece.last.row >= piece.first.row && piece.last.entry >= piece.first.entry, name + ": back");
      require(ptr[piece.first.row] <= piece.first.entry, name + ": a piece begins before its row");
      for (int64_t p = piece.first.entry; p < piece.last.entry; p += 97) {
        const int64_t i = row_of_entry(ptr, piece.first.row, piece.last.row, p);
        require(ptr[i] <= p && p < ptr[i + 1], name + ": the row of an entry");
      }
      if (!S.opens(s)) continue;
      const int64_t last = S.last_of(s), row = piece.last.row;
      require(S.point(last + 1).row == row, name + ": a piece that is not of this row");
      require(last + 1 == S.pieces() || S.point(last + 2).row != row, name + ": not the last piece of a row");
    }
  }
}

// Every item belongs to exactly one team.
template <int Lanes>
void large_grid(Random& random, int64_t items, int64_t most) {
  const int64_t blocks = blocks_for(items, kThreads / Lanes, most);
  std::uniform_int_distribution<int64_t> draw(0, items - 1);
  const int64_t step = turns<Lanes>(0, blocks, 0).step, teams = kThreads / Lanes;
  require(step == blocks * teams, "a grid steps by all its teams");
  for (int n = 0; n < 1000; ++n) {
    const int64_t item = n == 0 ? items - 1 : draw(random), team = item % step;
    const int64_t block = team / teams, thread = team % teams * Lanes;
    require(block < blocks, "an item falls to no block");
    for (int lane = 0; lane < Lanes; ++lane)
      require(turns<Lanes>(block, blocks, thread + lane).first == team, "lanes of a team have one item");
    if (thread >= Lanes)
      require(turns<Lanes>(block, blocks, thread - 1).first == team - 1,
              "teams have items one after another");
  }
}

struct Even {
  int64_t operator[](int64_t t) const { return 2 * t; }
};

}  // namespace
}  // namespace learnsolve::test

LS_TEST(device_sizes) {
  using namespace learnsolve::test;
  using namespace learnsolve::cuda;
  Random random(13);
  const int64_t large = int64_t{1} << 31;
  large_schedule(random, {3, 10, 0}, 3 * large, "3 entries a row");
  large_schedule(random, {0, 5, 3 * large}, 100, "one row of 2^31 entries and more");
  large_schedule(random, {1, large, 2 * large}, 2 * large, "one such row in the midst of short ones");
  large_schedule(random, {0, 5, 0}, 2 * large, "rows without entries");
  // Indices of 32 bits, whose items need more.
  large_schedule(random, {1, 10, 0}, large - 2, "nearly 2^31 rows and entries");
  for (const int64_t items : {int64_t{1}, int64_t{255}, large - 1, large, 40 * large, 4000 * large})
    for (const int64_t most : {int64_t{7}, large - 1}) {
      large_grid<1>(random, items, most);
      large_grid<8>(random, items, most);
      large_grid<32>(random, items, most);
    }
  for (const int64_t t : {int64_t{0}, int64_t{9}, large - 1, large, large + 12345, 5 * large}) {
    require(place_of(Even{}, 0, 6 * large, 2 * t) == t, "the place of a column");
    require(place_of(Even{}, t, t + large, 2 * t) == t, "the place of a column of a long row");
    require(place_of(Even{}, 0, 6 * large, 2 * t + 1) == -1, "a column that is not there");
    require(place_of(Even{}, t + 1, 6 * large, 2 * t) == -1, "a column of another row");
    require(place_of(Even{}, t, t, 2 * t) == -1, "a row without entries");
  }
}
