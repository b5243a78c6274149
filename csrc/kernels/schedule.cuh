// How rows are distributed: for one column by tiles (tile.cuh), otherwise each to one team, but for long
// ones, which are cut into pieces of kPiece entries. Pieces 0 to rows - 1 are the beginnings of all rows.
// What long rows have beyond stands in a table (learnsolve/matrix/device_analysis.py): the row and the first
// entry of every further piece, in order.
#pragma once

#include "kernels/tile.cuh"

namespace learnsolve::cuda {

// Entries begin <= p < end of row i.
struct Piece {
  int64_t i, begin, end;
};

template <class I>
struct Schedule {
  const I* ptr;
  const I* table;
  int64_t rows, nnz, further;
  Tiles<I> tiles;

  LS_BOTH int64_t pieces() const { return rows + further; }
  LS_BOTH Piece piece(int64_t s) const {
    const bool first = s < rows;
    const int64_t i = first ? s : static_cast<int64_t>(table[2 * (s - rows)]);
    const int64_t begin = first ? ptr[i] : table[2 * (s - rows) + 1], end = ptr[i + 1];
    return {i, begin, end - begin > kPiece ? begin + kPiece : end};
  }
  // If further piece t is the first of its row: the number of them that the row has; else 0.
  LS_BOTH int64_t opens(int64_t t) const {
    const int64_t i = table[2 * t], begin = table[2 * t + 1];
    return begin == ptr[i] + kPiece ? (ptr[i + 1] - begin + kPiece - 1) / kPiece : 0;
  }
};

}  // namespace learnsolve::cuda
