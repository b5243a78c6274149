// c = alpha a + beta b on the union of two patterns, and its adjoint, by the plan of kernels/union_plan.h:
// two bits an entry. A team takes a chunk of the plan: it counts the bits of eight bytes a lane, and the sums
// of the counts give, for every entry of C, the number of entries of A and B before it.
#pragma once

#include "kernels/launch.cuh"
#include "kernels/union_plan.h"

namespace learnsolve::cuda {

constexpr int kUnionBytes = kUnionChunk / 4;  // of codes, in a chunk
constexpr int kUnionWord = 8;
constexpr int kUnionLanes = kUnionBytes / kUnionWord;

LS_DEVICE int bits_set(uint64_t word) { return __popcll(word); }

// Entries of A and of B.
struct UnionCount {
  int a, b;
  static LS_DEVICE UnionCount of(uint64_t word) {
    return {bits_set(word & 0x0f0f0f0f0f0f0f0full), bits_set(word & 0xf0f0f0f0f0f0f0f0ull)};
  }
};

struct UnionScratch {
  uint64_t words[kUnionLanes];
  UnionCount counts[kUnionLanes];  // then: up to and including this lane's
};

template <class I>
struct UnionChunks {
  const uint8_t* codes;
  const I* starts;
  int64_t nnz, chunks;
};

// f(entry of C, entry of A or -1, entry of B or -1) for all entries of the chunk.
template <class Team, class I, class F>
LS_DEVICE void for_union(const Team& team, const UnionChunks<I>& P, int64_t chunk, UnionScratch& scratch,
                         const F& f) {
  static_assert(Team::size == kUnionLanes);
  const int64_t bytes = (P.nnz + 3) / 4, from = chunk * kUnionBytes;
  team.each([&](int lane) {
    const int64_t at = from + lane * kUnionWord;
    uint64_t word = 0;
    for (int n = 0; n < kUnionWord; ++n)
      if (at + n < bytes) word |= static_cast<uint64_t>(P.codes[at + n]) << 8 * n;
    scratch.words[lane] = word;
    scratch.counts[lane] = UnionCount::of(word);
  });
  team.sync();
  for (int h = 1; h < kUnionLanes; h *= 2) {
    typename Team::template Own<UnionCount> before;
    team.each([&](int lane) { before[lane] = lane >= h ? scratch.counts[lane - h] : UnionCount{0, 0}; });
    team.sync();
    team.each([&](int lane) {
      scratch.counts[lane].a += before[lane].a, scratch.counts[lane].b += before[lane].b;
    });
    team.sync();
  }
  const int64_t start_a = P.starts[2 * chunk], start_b = P.starts[2 * chunk + 1];
  team.each([&](int lane) {
    for (int byte = lane; byte < kUnionBytes && from + byte < bytes; byte += kUnionLanes) {
      const int w = byte / kUnionWord, within = byte % kUnionWord;
      const uint64_t word = scratch.words[w];
      const UnionCount here = UnionCount::of(word & ((uint64_t{1} << 8 * within) - 1));
      int64_t pa = start_a + here.a, pb = start_b + here.b;
      if (w > 0) pa += scratch.counts[w - 1].a, pb += scratch.counts[w - 1].b;
      const unsigned code = static_cast<unsigned>(word >> 8 * within) & 0xff;
      const int64_t entry = 4 * (from + byte);
      LS_UNROLL
      for (int l = 0; l < 4; ++l) {
        const bool in_a = code >> l & 1, in_b = code >> (4 + l) & 1;
        if (entry + l < P.nnz) f(entry + l, in_a ? pa : int64_t{-1}, in_b ? pb : int64_t{-1});
        pa += in_a, pb += in_b;
      }
    }
  });
  team.sync();
}

// For member s of a batch. An absent entry is not multiplied: a NaN among the factors meets no zero.
template <class T, class I>
struct UnionSum {
  UnionChunks<I> plan;
  const T* a;
  const T* b;
  T* c;
  int64_t na, nb, batch;
  T alpha, beta;

  template <class Team>
  LS_DEVICE void chunk(const Team& team, int64_t n, int64_t s, UnionScratch& scratch) const {
    const T *as = a + s * na, *bs = b + s * nb;
    T* cs = c + s * plan.nnz;
    for_union(team, plan, n, scratch, [&](int64_t entry, int64_t pa, int64_t pb) {
      T sum = 0;
      if (pa >= 0) sum = alpha * as[pa];
      if (pb >= 0) sum += beta * bs[pb];
      cs[entry] = sum;
    });
  }
};

// The adjoint. Either of ga and gb may be null.
template <class T, class I>
struct UnionSplit {
  UnionChunks<I> plan;
  const T* g;
  T* ga;
  T* gb;
  int64_t na, nb, batch;
  T alpha, beta;

  template <class Team>
  LS_DEVICE void chunk(const Team& team, int64_t n, int64_t s, UnionScratch& scratch) const {
    const T* gs = g + s * plan.nnz;
    T* as = ga ? ga + s * na : nullptr;
    T* bs = gb ? gb + s * nb : nullptr;
    for_union(team, plan, n, scratch, [&](int64_t entry, int64_t pa, int64_t pb) {
      if (as && pa >= 0) as[pa] = alpha * gs[entry];
      if (bs && pb >= 0) bs[pb] = beta * gs[entry];
    });
  }
};

}  // namespace learnsolve::cuda
