// Rows of any lengths with one vector: a loop over the entries of each row and, for short rows whose lengths
// vary, streams of entries that end rows without a branch. Both sum a row in the same order, to the same
// bits.
#pragma once

#include "kernels/csr_view.h"
#include "kernels/lanes.h"

namespace learnsolve::LEARNSOLVE_ISA {

// Keeps the compiler from vectorizing a sum. It would gather x, and multiply and add apart: in float32 1.6
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

// Do streams pay off for the rows r0 .. r0 + n - 1? They do where lengths vary otherwise than by turns, which
// a processor knows; and they need rows with entries. Only the last question is asked of every row.
template <class T, class I>
LS_INLINE bool prefers_streams(const CsrView<T, I>& A, int64_t r0, int64_t n) {
  constexpr int64_t sample = 32, samples = 4;
  const I* LS_RESTRICT ptr = A.ptr + r0;
  const int64_t entries = static_cast<int64_t>(ptr[n]) - ptr[0];
  if (n < sample * samples || entries < kStreamedEntries || entries > kEntriesAnEnd * n) return false;
  I first = A.idx[ptr[0]], last = first;
  int64_t ends = 0;
  for (int64_t s = 0; s < samples; ++s) {
    const I* LS_RESTRICT at = ptr + n / samples * s;
    if (at[1] == at[0]) return false;
    first = A.idx[at[0]] < first ? A.idx[at[0]] : first;
    last = A.idx[at[1] - 1] > last ? A.idx[at[1] - 1] : last;
    for (int64_t i = 2; i < sample; ++i) {
      const I length = at[i + 1] - at[i];
      ends += (length != at[i] - at[i - 1]) & (length != at[i - 1] - at[i - 2]);
    }
  }
  if (kEntriesAnEnd * ends * n < entries * samples * (sample - 2)) return false;
  if ((static_cast<int64_t>(last) - first) * static_cast<int64_t>(sizeof(T)) > kStreamedBytes) return false;
  for (int64_t turn = 3; turn <= sample / 2; ++turn) {
    I differ = 0;
    for (int64_t i = turn; i < sample; ++i)
      differ |= (ptr[i + 1] - ptr[i]) ^ (ptr[i + 1 - turn] - ptr[i - turn]);
    if (!differ) return false;
  }
  // Several streams in one row would wait for one another.
  const I longest = static_cast<I>(entries / (4 * kStreams));
  I outside = 0;  // negative if a row is empty or longer
  for (int64_t i = 0; i < n; ++i) {
    const I length = ptr[i + 1] - ptr[i];
    outside |= (length - 1) | (longest - length);
  }
  return outside >= 0;
}

// sums[i] of the rows r0 + i, none of which is empty; it has n + 1 places. The entries are divided into equal
// streams that advance together. Each entry is added to the sum of its row in memory, and a comparison
// advances the row. A row in which a stream begins is summed again, in one piece.
//
// The plain loop mispredicts the end of most rows of random lengths. Measured on one thread of a Zen 5, rows
// of 1 to 60 entries: 272,000 entries, 8 a row, 280 us instead of 335 in float64 and 275 instead of 365 in
// float32 (550 in a vectorized loop); 110,000 entries, 3 a row, 132 instead of 262. With `perm` values are
// read in random places, and nothing is gained.
template <class T, class I>
LS_FUNCTION void stream_sums(const CsrView<T, I>& A, int64_t r0, int64_t n, const T* LS_RESTRICT x,
                             T* LS_RESTRICT sums) {
  constexpr int S = kStreams;
  const I* LS_RESTRICT ptr = A.ptr + r0;
  const T* LS_RESTRICT a = A.values;
  const I* LS_RESTRICT idx = A.idx;
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
      sums[row[s]] += a[p[s]] * x[idx[p[s]]];
      ++p[s];
      row[s] += ptr[row[s] + 1] <= p[s];
    }
  const auto whole = [&](int64_t i) { sums[i] = row_dot<false>(A, ptr[i], ptr[i + 1], x); };
  for (int s = 1; s < S; ++s) whole(first[s]);
  for (int64_t i = row[S - 1]; i < n; ++i) whole(i);
}

// An epilogue that has this adds up over the rows by lanes: those of a block in groups of kRows, as streams
// give them. How long a range is, which depends on the number of threads, must not change the bits of a sum.
template <class Epilogue>
concept AddsByLanes = Epilogue::kAddsByLanes;

// A function of its own, aligned, so that the branches of its loops lie at known places: with all three in
// one line of the instruction cache, as chance had it elsewhere, the same instructions took 1.4 times as
// long.
template <bool Perm, bool Fours, class T, class I, class Epilogue>
__attribute__((aligned(64))) LS_FUNCTION void one_by_one(const CsrView<T, I>& A, int64_t r0, int64_t r1,
                                                         const T* x, Epilogue& epilogue) {
  Epilogue out = epilogue;
  int64_t i = r0;
  if constexpr (AddsByLanes<Epilogue>) {
    constexpr int V = kRows<T>;
    for (; i + V <= r1; i += V) {
      T s[V];
      for (int e = 0; e < V; ++e) s[e] = row_dot<Perm, Fours>(A, A.ptr[i + e], A.ptr[i + e + 1], x);
      out.rows(i, V, s);
    }
  }
  for (; i < r1; ++i) {
    const T s = row_dot<Perm, Fours>(A, A.ptr[i], A.ptr[i + 1], x);
    out.rows(i, 1, &s);
  }
  epilogue = out;
}

// `many`: these rows are of a long range. In float64 `Fours` would be the faster form of short ones in loops
// that do nothing else; in float32 it is so everywhere, compared with the vectorized form.
template <bool Perm, class T, class I, class Epilogue>
LS_FUNCTION void irregular_rows(const CsrView<T, I>& A, int64_t r0, int64_t r1, bool many, const T* x,
                                Epilogue& epilogue) {
  constexpr int V = kRows<T>;
  if (!many) return one_by_one<Perm, sizeof(T) == 4>(A, r0, r1, x, epilogue);
  for (int64_t i = r0, end; i < r1; i = end) {
    end = r1 - i > kStreamedRows ? i + kStreamedRows : r1;
    if (Perm || !prefers_streams(A, i, end - i)) {
      one_by_one<Perm, false>(A, i, end, x, epilogue);
      continue;
    }
    T sums[kStreamedRows + 1];
    stream_sums(A, i, end - i, x, sums);
    Epilogue out = epilogue;
    int64_t e = 0;
    for (; e + V <= end - i; e += V) out.rows(i + e, V, sums + e);
    for (; e < end - i; ++e) out.rows(i + e, 1, sums + e);
    epilogue = out;
  }
}

}  // namespace learnsolve::LEARNSOLVE_ISA
