// What a measurement on a device may change in the CUDA kernels: sizes, and limits between kernels. Each
// comment says what it is, what chose it, and what decides: a probe (benchmarks/probes) or a section of
// benchmarks.gpu. "Model" is the traffic of docs/cuda.md, "H200" the committed results
// (benchmarks/results/gpu-nvidia-h200.md), which had this value. Nothing is chosen at run time: results would
// differ between runs.
#pragma once

#include <cstdint>

namespace learnsolve::cuda {

// Threads of a block, by default. H200; nothing varies it yet.
constexpr int kThreads = 256;

// --- Products with a vector ---
// Entries of a row from which it is cut (device_analysis.py has it too). Not measured; probe products.
constexpr int64_t kPiece = 1024;
// Entries of a tile (device_analysis.py too), not 2,048: what a tile has beyond, the rest of its last row,
// goes with the last loads of a block. Model; probe products.
constexpr int64_t kTile = 1984;
// Entries of a lane that are under way at a time. Model; probe products.
constexpr int kUnderWay = 8;
// Blocks of a processor whose registers hold them; before sm_80 it has 1,024 threads, and for more the whole
// bound would be ignored. Registers; probe products.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kMostBlocks = 4;
#else
constexpr int kMostBlocks = 5;
#endif
template <class T>
constexpr int kTileBlocks = sizeof(T) == 4 ? kMostBlocks : 4;
// Tiles from which a block takes several neighbors, whose rows often gather the same numbers, and how many:
// there are many more than a device runs at a time. Model; probe products.
constexpr int64_t kManyTiles = 6000;
constexpr int kTilesEach = 4;

// --- Products with several columns ---
// Rows of x that a lane loads together. The bytes that must be under way for L2's bandwidth; section spmm.
constexpr int kRowsTogether = 4;
// Lanes of a row: the fewest, a power of two, whose packs hold all columns. Not measured; section spmm.
constexpr int kFewestLanes = 4, kMostLanes = 32;
// Blocks of a processor. Registers; section spmm.
constexpr int kColumnsBlocks = 3;

// --- Loops ---
// Chunks of rows at most, and rows of one at least (device_analysis.py too). Measured as they are; section
// pcg.
constexpr int64_t kMostChunks = 1024, kFewestChunkRows = 128;
// Mean entries of a row from which product and sum are two passes: spmm then distributes the rows, and what
// the sum reads again is little next to the matrix. Not measured; section pcg.
constexpr int64_t kManyEntries = 32;
// Sweeps whose partial sums are kept before one launch adds them up. Not measured; section stationary.
constexpr int64_t kSweepsTogether = 32;

// --- Triangular systems ---
// Bidiagonal: rows of a thread; chunks of a system that one block takes. Measured as they are; section
// sptrsv.
constexpr int kBandRows = 4;
constexpr int64_t kBlockChunks = 4;
// Levels whose rows are under way: who polls without need is in the way of others. Not measured; probe
// triangular.
constexpr int64_t kLevelsAhead = 8;
// Narrow levels: rows and entries in shared memory (ops/triangular.py has them too, and which levels are
// narrow), and those of a row that are read ahead. Shared memory and registers; probe triangular.
constexpr int kChunkRows = 512, kChunkEntries = 2048, kEntriesAhead = 4;

// --- Incomplete factorizations ---
// Threads of the block that goes through narrow levels, and their steps. Not measured; nothing yet.
constexpr int kLevelThreads = 512;
constexpr int64_t kNarrow = 4 * kLevelThreads;

// --- Stencils ---
// Sums over points in registers; their parts at most, and points of one at least. Not measured, by nothing
// yet.
constexpr int kStencilSums = 8;
constexpr int64_t kStencilParts = 4096, kFewestPoints = 512;

}  // namespace learnsolve::cuda
