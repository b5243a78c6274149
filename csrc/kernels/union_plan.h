// How the union of two patterns is written down, for the kernels that add and the analysis that plans.
//
// The entries of C = A + B stand in the order of CSR, and those of A and of B are found among them in their
// own order. So one bit per entry and operand suffices: codes[q] describes the entries 4q to 4q + 3 of C, bit
// l set where A has entry 4q + l, bit 4 + l where B has. Entries are worked on in chunks, and starts[2c],
// starts[2c + 1] are the first entries of A and of B in chunk c: chunks + 1 lines, the last (nnz of A, nnz of
// B). Two bits instead of two positions: the plan is read at no cost beside the values.
#pragma once

#include <cstdint>

namespace learnsolve {

constexpr int64_t kUnionChunk = 8192;  // a multiple of 4

constexpr int64_t union_chunks(int64_t nnz) { return (nnz + kUnionChunk - 1) / kUnionChunk; }

}  // namespace learnsolve
