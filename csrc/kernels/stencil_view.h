// What a kernel sees of a stencil on a structured grid: numbers and raw pointers, no ownership.
#pragma once

#include <cstdint>

namespace learnsolve {

// Points i = (i0, i1, i2), the last axis fastest; a grid of fewer dimensions has ones in front. Offset k is
// offsets[3k .. 3k + 2]; |offset| <= size along an axis with zeros outside, < size along a periodic one.
//
// A line is a row of points along the last axis. There it is cut into pieces, bounds[p] <= i2 < bounds[p +
// 1]: from one piece to the next an offset goes over the border of the grid, within a piece none does. So
// within a piece every neighbor is at a fixed distance or nowhere, for offsets of any size and either
// boundary.
//
// A block is what one thread works on at once: `lines` lines or, of long lines, a segment of one line.
struct StencilView {
  int64_t grid[3];
  bool periodic[3];
  const int64_t* offsets;
  int64_t count;
  const int64_t* bounds;
  int64_t pieces;
  int64_t lines;     // of a block
  int64_t segment;   // points of a line that a block holds, at most
  int64_t segments;  // of a line; lines = 1 if there are more than one

  int64_t points() const { return grid[0] * grid[1] * grid[2]; }
  int64_t blocks() const { return (grid[0] * grid[1] + lines - 1) / lines * segments; }
};

// What c_k(i) is: a number for each offset; a grid of numbers for each offset, of which point i takes its
// own; or that of its neighbor i + o_k.
enum class Coefficients { constant, variable, of_neighbor };

}  // namespace learnsolve
