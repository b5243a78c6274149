// The gradient of the values of a matrix that a loop multiplies by again and again: of many pairs of vectors
// at once.
#pragma once

#include "kernels/sddmm.h"

namespace learnsolve::LEARNSOLVE_ISA {

// Uniform rows: the entries of V rows stay in registers for all pairs.
template <int L, class T, class I>
LS_INLINE bool pairs_uniform_rows(const I* ptr, const I* idx, int64_t r0, int64_t r1, const T* const* u,
                                  const T* const* v, int64_t pairs, T* out) {
  if constexpr (kShuffles<L, T>) {
    constexpr int V = kLanes<T>;
    const int64_t first = ptr[r0], n = r1 - r0;
    int64_t column[L];
#pragma GCC unroll 16
    for (int l = 0; l < L; ++l) column[l] = idx[first + l];
    LanePicker<L, T> picker;
    LaneWeaver<L, T> weaver;
    int64_t t = 0;
    for (; t + V <= n; t += V) {
      T* at = out + first + t * L;
      picker.read(at);
#pragma GCC unroll 16
      for (int l = 0; l < L; ++l) weaver.lanes[l] = picker.pick(l);
      for (int64_t j = 0; j < pairs; ++j) {
        const auto uj = load(u[j] + r0 + t);
        const T* vj = v[j] + t;
        prefetch(vj + column[L / 2]);
#pragma GCC unroll 16
        for (int l = 0; l < L; ++l) weaver.lanes[l] += uj * load(vj + column[l]);
      }
#pragma GCC unroll 16
      for (int s = 0; s < L; ++s) store(at + s * V, weaver.weave(s));
    }
    for (; t < n; ++t)
      for (int64_t j = 0; j < pairs; ++j)
#pragma GCC unroll 16
        for (int l = 0; l < L; ++l) out[first + t * L + l] += u[j][r0 + t] * v[j][t + column[l]];
    return true;
  } else {
    return false;
  }
}

template <class T, class I>
LS_INLINE bool pairs_uniform_block(const I* ptr, const I* idx, int64_t r0, int64_t r1, int64_t length,
                                   const T* const* u, const T* const* v, int64_t pairs, T* out) {
  switch (length) {
    case 2: return pairs_uniform_rows<2>(ptr, idx, r0, r1, u, v, pairs, out);
    case 3: return pairs_uniform_rows<3>(ptr, idx, r0, r1, u, v, pairs, out);
    case 4: return pairs_uniform_rows<4>(ptr, idx, r0, r1, u, v, pairs, out);
    case 5: return pairs_uniform_rows<5>(ptr, idx, r0, r1, u, v, pairs, out);
    case 6: return pairs_uniform_rows<6>(ptr, idx, r0, r1, u, v, pairs, out);
    case 7: return pairs_uniform_rows<7>(ptr, idx, r0, r1, u, v, pairs, out);
    default: return false;
  }
}

// Pairs that are added in one pass over a block: with more streams than this the machine no longer
// prefetches.
inline constexpr int64_t kPairsAtOnce = 4;

// out_p += sum over the pairs of <u_i, v_j>, one after another: no bit depends on how pairs are grouped. What
// `out` and the indices of a block take stays in the cache for all pairs.
template <class T, class I>
void sddmm_pairs(const I* ptr, const I* idx, const RowBlocks<I>& blocks, int64_t b0, int64_t b1,
                 const T* const* u, const T* const* v, int64_t pairs, int64_t k, T* out) {
  for (int64_t b = b0; b < b1; ++b) {
    const I* block = blocks.table + 2 * b;
    for (int64_t j = 0; j < pairs; j += kPairsAtOnce) {
      const int64_t some = pairs - j < kPairsAtOnce ? pairs - j : kPairsAtOnce;
      if (k == 1 && pairs_uniform_block(ptr, idx, block[0], block[2], block[1], u + j, v + j, some, out))
        continue;
      for (int64_t e = j; e < j + some; ++e)
        sddmm_blocks<T, I, true>(ptr, idx, blocks, b, b + 1, u[e], v[e], k, out);
    }
  }
}

}  // namespace learnsolve::LEARNSOLVE_ISA
