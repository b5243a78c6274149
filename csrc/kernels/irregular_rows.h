// Rows of any lengths with one vector: a loop over the entries of each row and, for short rows whose lengths
// vary, streams of entries that end rows without a branch. Both sum a row in the same order, to the same bits.
#pragma once

#include "kernels/csr_view.h"
#include "kernels/lanes.h"

namespace learnsolve::LEARNSOLVE_ISA {

// Keeps the compiler from vectorising a sum. It would gather x, and multiply and add apart: in float32 1.6
// times as long for long ranges of rows, and other bits than a product with several columns.
template <class T>
LS_INLINE void keep_scalar(T& s) {
#if defined(__x86_64__)
  asm("" : "+x"(s));
#elif defined(__aarch64__)
  asm("" : "+w"(s));
#endif
}

// One plain loop: what limits it is the loads of x, not the chain of additions. Four sums in flight took 1.3
// to 1.6 times as long (rows of 8 and of 210 entries), and vector gathers are slower than scalar loads on
// AMD. With `Fours` a row has fewer branches: where a processor knows them all from the last call (some
// thousand rows), 0.4 instead of 0.4 to 1.1 ns an entry, which depends on where the loop lies in memory;
// where it cannot know them, 1.7 instead of 1.2.
template <bool Perm, bool Fours = false, class T, class I>
LS_INLINE T row_dot(const CsrView<T, I>& A, int64_t p, int64_t end, const T* LS_RESTRICT x) {
  const T* LS_RESTRICT a = A.values;
  const I* LS_RESTRICT idx = A.idx;
  const I* LS_RESTRICT perm = A.perm;
  T s = 0;
  const auto add = [&](int64_t q) {
    s += a[Perm ? static_cast<int64_t>(perm[q]) : q] * x[idx[q]];
    keep_scalar(s);
  };
  if constexpr (Fours) {
    for (; p + 4 <= end; p += 4) add(p), add(p + 1), add(p + 2), add(p + 3);
    switch (end - p) {
      case 3: return add(p), add(p + 1), add(p + 2), s;
      case 2: return add(p), add(p + 1), s;
      case 1: return add(p), s;
      default: return s;
    }
  }
  for (; p < end; ++p) add(p);
  return s;
}

// Entries of a range of rows whose ends no processor knows from the last call.
inline constexpr int64_t kLongRange = 1 << 16;
// Rows that are streamed together at most; entries that are worth it; and entries, at most, for each row end
// that is hard to predict.
inline constexpr int64_t kStreamedRows = 1024, kStreamedEntries = 1024, kEntriesAnEnd = 10;
// Bytes of x that the rows reach, at most: the second-level cache. Beyond it the plain loop is as fast, or
// faster: fewer instructions for an entry let more loads of x be under way.
inline constexpr int64_t kStreamedBytes = 1 << 19;
inline constexpr int kStreams = 5;

// Do streams pay off for the rows r0 .. r0 + n - 1? They do where lengths vary otherwise than by turns; and
// they need rows with entries. The first rows rule out most others.
template <class T, class I>
LS_INLINE bool prefers_streams(const CsrView<T, I>& A, int64_t r0, int64_t n) {
  constexpr int64_t sample = 32;
  const I* LS_RESTRICT ptr = A.ptr + r0;
  const int64_t entries = static_cast<int64_t>(ptr[n]) - ptr[0];
  if (n < sample || entries < kStreamedEntries || entries > kEntriesAnEnd * n) return false;
  const auto hard_ends = [&](int64_t end) {
    int64_t count = 0;
    for (int64_t i = 2; i < end; ++i) {
      const I length = ptr[i + 1] - ptr[i];
      count += (length != ptr[i] - ptr[i - 1]) & (length != ptr[i - 1] - ptr[i - 2]);
    }
    return count;
  };
  // Twice as many are allowed for the few rows. A processor knows the ends of lengths that take turns.
  if (2 * kEntriesAnEnd * hard_ends(sample) < ptr[sample] - ptr[0]) return false;
  for (int64_t turn = 3; turn <= sample / 2; ++turn) {
    bool same = true;
    for (int64_t i = turn; i < sample; ++i)
      same &= ptr[i + 1] - ptr[i] == ptr[i + 1 - turn] - ptr[i - turn];
    if (same) return false;
  }
  if (kEntriesAnEnd * hard_ends(n) < entries) return false;
  I shortest = 1, longest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const I length = ptr[i + 1] - ptr[i];
    shortest = length < shortest ? length : shortest;
    longest = length > longest ? length : longest;
  }
  // Several streams in one row would wait for one another.
  if (shortest < 1 || 4 * kStreams * static_cast<int64_t>(longest) > entries) return false;
  I first = A.idx[ptr[0]], last = first;
  for (int64_t i = 0; i < n; i += sample) {
    const I low = A.idx[ptr[i]], high = A.idx[ptr[i + 1] - 1];
    first = low < first ? low : first;
    last = high > last ? high : last;
  }
  return (static_cast<int64_t>(last) - first) * static_cast<int64_t>(sizeof(T)) <= kStreamedBytes;
}

// sums[i] of the rows r0 + i, none of which is empty; it has n + 1 places. The entries are divided into equal
// streams that advance together. Each entry is added to the sum of its row in memory, and a comparison
// advances the row. A row in which a stream begins is summed again, in one piece.
//
// Measured on one thread of a Zen 5, 272,000 entries in rows of 1 to 60, 8 on average: F64NEW us instead of
// F64OLD in float64, F32NEW instead of F32OLD in float32. The plain loop mispredicts the end of most of these rows.
template <bool Perm, class T, class I>
LS_FUNCTION void stream_sums(const CsrView<T, I>& A, int64_t r0, int64_t n, const T* LS_RESTRICT x,
                             T* LS_RESTRICT sums) {
  constexpr int S = kStreams;
  const I* LS_RESTRICT ptr = A.ptr + r0;
  const T* LS_RESTRICT a = A.values;
  const I* LS_RESTRICT idx = A.idx;
  const I* LS_RESTRICT perm = A.perm;
  const int64_t begin = ptr[0], length = (static_cast<int64_t>(ptr[n]) - begin) / S;
  int64_t p[S], row[S], first[S];
  for (int64_t i = 0; i <= n; ++i) sums[i] = 0;
  for (int s = 0; s < S; ++s) {
    p[s] = begin + s * length;
    row[s] = 0;
    for (int64_t left = n; left > 1;) {
      const int64_t half = left / 2;
      row[s] += ptr[row[s] + half] <= p[s] ? half : 0;
      left -= half;
    }
    first[s] = row[s];
  }
  for (int64_t t = 0; t < length; ++t)
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) {
      sums[row[s]] += a[Perm ? static_cast<int64_t>(perm[p[s]]) : p[s]] * x[idx[p[s]]];
      ++p[s];
      row[s] += ptr[row[s] + 1] <= p[s];
    }
  const auto whole = [&](int64_t i) { sums[i] = row_dot<Perm>(A, ptr[i], ptr[i + 1], x); };
  for (int s = 1; s < S; ++s) whole(first[s]);
  for (int64_t i = row[S - 1]; i < n; ++i) whole(i);
}

// A function of its own, aligned, so that the branches of its loops lie at known places: with all three in one
// line of the instruction cache, as chance had it elsewhere, the same instructions took 1.4 times as long.
template <bool Perm, bool Fours, class T, class I, class Epilogue>
__attribute__((aligned(64))) LS_FUNCTION void one_by_one(const CsrView<T, I>& A, int64_t r0, int64_t r1,
                                                         const T* x, Epilogue& epilogue) {
  Epilogue out = epilogue;
  for (int64_t i = r0; i < r1; ++i) {
    const T s = row_dot<Perm, Fours>(A, A.ptr[i], A.ptr[i + 1], x);
    out.rows(i, 1, &s);
  }
  epilogue = out;
}

// `many`: these rows are of a long range. In float64 `Fours` would be the faster form of short ones in loops
// that do nothing else; in float32 it is so everywhere, compared with the vectorised form.
template <bool Perm, class T, class I, class Epilogue>
LS_FUNCTION void irregular_rows(const CsrView<T, I>& A, int64_t r0, int64_t r1, bool many, const T* x,
                                Epilogue& epilogue) {
  constexpr int64_t V = kRows<T>;
  if (!many) return one_by_one<Perm, sizeof(T) == 4>(A, r0, r1, x, epilogue);
  for (int64_t i = r0, end; i < r1; i = end) {
    end = r1 - i > kStreamedRows ? i + kStreamedRows : r1;
    if (!prefers_streams(A, i, end - i)) {
      one_by_one<Perm, false>(A, i, end, x, epilogue);
      continue;
    }
    T sums[kStreamedRows + 1];
    stream_sums<Perm>(A, i, end - i, x, sums);
    for (int64_t e = 0; e < end - i; e += V)
      epilogue.rows(i + e, static_cast<int>(end - i - e < V ? end - i - e : V), sums + e);
  }
}

}  // namespace learnsolve::LEARNSOLVE_ISA
