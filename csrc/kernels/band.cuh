// T x = b for a triangular T that is bidiagonal, each row with an entry next to its diagonal: a scan of
// affine maps. In the order of the sweep x_t = s_t + c_t x_{t-1}, by the rule of kernels/triangular.cuh, so a
// stretch of rows is an affine map of the result before it.
//
// A block takes a chunk of consecutive rows, of fixed size, and a thread kBandRows of them: they stay in
// registers. The maps of the threads are scanned in shared memory; then every thread knows what comes before
// its rows.
//
// If that is not finite in some thread, because products of factors overflow or because the data are not
// finite, the threads of the chunk run one after another: what is not finite reaches what depends on it, and
// no more. If products underflow, the contribution of the rows before is taken as zero, although later rows
// may amplify it again.
#pragma once

#include "kernels/triangular.cuh"

namespace learnsolve::cuda {

constexpr int64_t kChunk = kThreads * kBandRows;

// x -> s + c x
template <class T>
struct Affine {
  T s, c;

  LS_DEVICE T of(T x) const { return plus_product(s, c, x); }
};
template <class T>
LS_DEVICE Affine<T> after(const Affine<T>& first, const Affine<T>& then) {
  return {then.of(first.s), times(then.c, first.c)};
}

// One column of one system; row t in the order of the sweep.
template <class T, class I>
struct Band {
  Triangle<T, I> S;  // values: of this system
  const T* b;
  T* x;
  int64_t k;

  LS_DEVICE int64_t row(int64_t t) const { return S.upper ? S.rows - 1 - t : t; }
  LS_DEVICE T& at(int64_t t) const { return x[row(t) * k]; }
  // Rows have two entries, the first of the sweep one; one and none if the diagonal is not stored.
  LS_DEVICE T diagonal(int64_t i) const { return S.unit ? T(1) : S.values[S.place(2 * i)]; }
  LS_DEVICE T beside(int64_t i) const {
    const int64_t p = S.unit ? i : 2 * i;
    return S.values[S.place(S.upper ? p + !S.unit : p - 1)];
  }
  // Rows beyond the last one give zeros.
  LS_DEVICE Affine<T> map(int64_t t) const {
    if (t >= S.rows) return {0, 0};
    const int64_t i = row(t);
    const T r = S.unit ? T(1) : reciprocal(diagonal(i));
    return {times(b[i * k], r), t > 0 ? -times(beside(i), r) : T(0)};
  }
};

template <class T>
struct ScanRoom {
  Affine<T> maps[2][kThreads];
  T ends[kThreads];
};

// The rows of this thread in the chunk from t0 on.
template <class T>
struct ThreadRows {
  int64_t first;
  Affine<T> row[kBandRows];

  template <class I>
  LS_DEVICE ThreadRows(const Band<T, I>& A, int64_t t0) : first(t0 + threadIdx.x * kBandRows) {
    LS_UNROLL
    for (int e = 0; e < kBandRows; ++e) row[e] = A.map(first + e);
  }
  LS_DEVICE Affine<T> map() const {
    Affine<T> all = row[0];
    LS_UNROLL
    for (int e = 1; e < kBandRows; ++e) all = after(all, row[e]);
    return all;
  }
  // f(t, x) for each, from the result before on; the last one.
  template <class F>
  LS_DEVICE T walk(T x, const F& f) const {
    LS_UNROLL
    for (int e = 0; e < kBandRows; ++e) x = row[e].of(x), f(first + e, x);
    return x;
  }
};

// The maps of the threads, each after those of all threads before. Until a barrier nobody may scan again.
template <class T>
LS_DEVICE const Affine<T>* scan(Affine<T> own, ScanRoom<T>& room) {
  const int lane = static_cast<int>(threadIdx.x);
  int at = 0;
  room.maps[at][lane] = own;
  __syncthreads();
  for (int h = 1; h < kThreads; h *= 2) {
    if (lane >= h) own = after(room.maps[at][lane - h], own);
    at = 1 - at;
    room.maps[at][lane] = own;
    __syncthreads();
  }
  return room.maps[at];
}

// The threads one after another: what comes before this one's rows. After it, into room.ends.
template <class T>
LS_DEVICE T walk_in_turn(const ThreadRows<T>& rows, T before, ScanRoom<T>& room) {
  const int lane = static_cast<int>(threadIdx.x);
  for (int turn = 0; turn < kThreads; ++turn) {
    if (lane == turn) {
      if (turn > 0) before = room.ends[turn - 1];
      room.ends[turn] = rows.walk(before, [](int64_t, T) {});
    }
    __syncthreads();
  }
  return before;
}

// The map of the chunk from row t0 on, which has a row after it.
template <class T, class I>
LS_DEVICE void chunk_map(const Band<T, I>& A, int64_t t0, ScanRoom<T>& room, Affine<T>* out) {
  const Affine<T>* whole = scan(ThreadRows<T>(A, t0).map(), room);
  if (threadIdx.x == 0) *out = whole[kThreads - 1];
  __syncthreads();
}

// The results of the chunk from row t0 on, from the one before it.
template <class T, class I>
LS_DEVICE void solve_chunk(const Band<T, I>& A, int64_t t0, T before, ScanRoom<T>& room) {
  const ThreadRows<T> rows(A, t0);
  const Affine<T>* whole = scan(rows.map(), room);
  T start = threadIdx.x == 0 ? before : whole[threadIdx.x - 1].of(before);
  // After a result that is not finite there is no other.
  if (__syncthreads_or(rows.first < A.S.rows && !finite(start)) && finite(before))
    start = walk_in_turn(rows, before, room);
  rows.walk(start, [&](int64_t t, T x) {
    if (t < A.S.rows) A.at(t) = x;
  });
  __syncthreads();
}

// The last result of each of the first `count` chunks, from their maps: as many at a time as there are
// threads.
template <class T, class I>
LS_DEVICE void chunk_ends(const Band<T, I>& A, int64_t count, const Affine<T>* maps, ScanRoom<T>& room,
                          T* ends) {
  T before = 0;
  for (int64_t first = 0; first < count; first += kThreads) {
    const int64_t own = first + threadIdx.x, end = first + kThreads < count ? first + kThreads : count;
    const Affine<T>* whole = scan(own < end ? maps[own] : Affine<T>{0, 0}, room);
    const T x = whole[threadIdx.x].of(before);
    if (own < end) ends[own] = x;
    if (__syncthreads_or(own < end && !finite(x)) && finite(before)) {
      for (int64_t c = first; c < end; ++c) {  // by all threads
        T last = maps[c].of(before);
        if (!finite(last) && finite(before)) {
          walk_in_turn(ThreadRows<T>(A, c * kChunk), before, room);
          last = room.ends[kThreads - 1];
        }
        if (threadIdx.x == 0) ends[c] = last;
        before = last;
      }
      __syncthreads();
    }
    before = ends[end - 1];
  }
}

}  // namespace learnsolve::cuda
