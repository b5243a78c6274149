// T x = b for a triangular T on a device, by the rule of kernels/sptrsv.h,
//
//     x_i = b_i r_i - sum_j (t_ij r_i) x_j,   r_i = 1 / t_ii (1 for a unit diagonal),
//
// the farthest column first. A row is solved by a team of 1, 8 or 32 lanes, whichever kernel it falls to, and
// so has the same bits in all of them. A device is not waited for to look for zeros on the diagonal: a row
// whose reciprocal is infinite is NaN, and so is what depends on it.
//
// A chain, where every row but the first depends on the one before, is a composition of affine maps
// x_t = s_t + m_t x_{t-1}: a scan over chunks of fixed size, each with its lanes' maps in shared memory.
// Factors that overflow send a chunk to be walked row by row.
#pragma once

#include <cstdlib>

#include "kernels/launch.cuh"

namespace learnsolve::cuda {

#ifdef __CUDACC__
// A product that no addition is fused with, and one that is: every kernel has the same bits.
LS_DEVICE float times(float a, float b) { return __fmul_rn(a, b); }
LS_DEVICE double times(double a, double b) { return __dmul_rn(a, b); }
LS_DEVICE float plus_product(float s, float a, float b) { return __fmaf_rn(a, b, s); }
LS_DEVICE double plus_product(double s, double a, double b) { return __fma_rn(a, b, s); }
#else
template <class T>
T times(T a, T b) {
  return a * b;
}
template <class T>
T plus_product(T s, T a, T b) {
  return s + a * b;
}
#endif

template <class T>
LS_BOTH bool finite(T v) {
  return v - v == 0;
}

// 1 / d, NaN where that is infinite.
template <class T>
LS_BOTH T reciprocal(T d) {
  const T r = T(1) / d;
  return finite(r) || r != r ? r : r - r;
}

// Rows hold the entries that are read and no others, sorted: TriangleView of kernels/csr_view.h.
template <class T, class I>
struct Triangle {
  const I* ptr;
  const I* idx;
  const I* perm;
  const T* values;
  int64_t values_step;  // from one member of the batch to the next
  int64_t rows;
  bool upper, unit;

  LS_BOTH int64_t place(int64_t p) const { return perm ? static_cast<int64_t>(perm[p]) : p; }
};

// Right-hand sides and results, (batch, rows, k).
template <class T>
struct Sides {
  const T* b;
  T* x;
  int64_t b_step, x_step, k;
};

// One lane's part of a row: entries lane, lane + N, ... of its N lanes, the first few read ahead of the
// results that they are multiplied with.
template <int N, class T, class I>
struct LaneRow {
  static constexpr int kHeld = 4;
  T sum, r;
  T coefficient[kHeld];
  I column[kHeld];
  int64_t far, count;

  LS_DEVICE int64_t entry(const Triangle<T, I>& S, int64_t e) const { return S.upper ? far - e : far + e; }
  LS_DEVICE void read(const Triangle<T, I>& S, const Sides<T>& v, int64_t i, int64_t c, int64_t m, int lane) {
    const T* values = S.values + m * S.values_step;
    const int64_t begin = S.ptr[i], end = S.ptr[i + 1];
    count = end - begin - !S.unit, far = S.upper ? end - 1 : begin;
    r = S.unit ? T(1) : reciprocal(values[S.place(S.upper ? begin : end - 1)]);
    sum = lane == 0 ? times(v.b[m * v.b_step + i * v.k + c], r) : T(0);
    LS_UNROLL
    for (int h = 0; h < kHeld; ++h) {
      const int64_t e = lane + h * N;
      if (e >= count) break;
      coefficient[h] = -times(values[S.place(entry(S, e))], r);
      column[h] = S.idx[entry(S, e)];
    }
  }
  // f(column) for all of the part.
  template <class F>
  LS_DEVICE void each_column(const Triangle<T, I>& S, int lane, const F& f) const {
    LS_UNROLL
    for (int h = 0; h < kHeld; ++h) {
      if (lane + h * N >= count) return;
      f(static_cast<int64_t>(column[h]));
    }
    for (int64_t e = lane + kHeld * N; e < count; e += N) f(static_cast<int64_t>(S.idx[entry(S, e)]));
  }
  LS_DEVICE T total(const Triangle<T, I>& S, const Sides<T>& v, int64_t c, int64_t m, int lane) const {
    const T* values = S.values + m * S.values_step;
    const T* x = v.x + m * v.x_step + c;
    T s = sum;
    LS_UNROLL
    for (int h = 0; h < kHeld; ++h) {
      if (lane + h * N >= count) return s;
      s = plus_product(s, coefficient[h], x[static_cast<int64_t>(column[h]) * v.k]);
    }
    for (int64_t e = lane + kHeld * N; e < count; e += N) {
      const int64_t p = entry(S, e);
      s = plus_product(s, -times(values[S.place(p)], r), x[static_cast<int64_t>(S.idx[p]) * v.k]);
    }
    return s;
  }
};

// Where results are awaited: nowhere, if a launch or a barrier lies between a row and those that it reads.
struct NoFlags {
  LS_DEVICE void await(int64_t) const {}
  LS_DEVICE void all_awaited() const {}
  LS_DEVICE void publish(int64_t) const {}
};

// One flag for each result, zero before the sweep. Whoever has seen a flag, and then passed a fence, sees the
// result that was written before the fence before the flag. On the host rows come in order.
struct Flags {
  int32_t* done;
#ifdef __CUDACC__
  LS_DEVICE void await(int64_t at) const {
    int32_t seen = 0;
    do {
      asm volatile("ld.relaxed.gpu.s32 %0, [%1];" : "=r"(seen) : "l"(done + at) : "memory");
    } while (seen == 0);
  }
  LS_DEVICE void all_awaited() const { __threadfence(); }
  LS_DEVICE void publish(int64_t at) const {
    __threadfence();
    asm volatile("st.relaxed.gpu.s32 [%0], %1;" ::"l"(done + at), "r"(1) : "memory");
  }
#else
  LS_DEVICE void await(int64_t at) const {
    if (done[at] != 1) std::abort();  // a device would wait for ever
  }
  LS_DEVICE void all_awaited() const {}
  LS_DEVICE void publish(int64_t at) const { done[at] = 1; }
#endif
};

// Row i for column c of member m by one team.
template <class Team, class T, class I, class F>
LS_DEVICE void solve_row(const Team& team, const Triangle<T, I>& S, const Sides<T>& v, int64_t i, int64_t c,
                         int64_t m, const F& flags) {
  using Row = LaneRow<Team::size, T, I>;
  typename Team::template Own<Row> row;
  typename Team::template Own<T> part;
  team.each([&](int lane) {
    Row& own = row[lane];
    own.read(S, v, i, c, m, lane);
    own.each_column(S, lane, [&](int64_t j) { flags.await(m * v.x_step + j * v.k + c); });
    flags.all_awaited();
    part[lane] = own.total(S, v, c, m, lane);
  });
  const T total = team.sum(part);
  team.first([&] {
    v.x[m * v.x_step + i * v.k + c] = total;
    flags.publish(m * v.x_step + i * v.k + c);
  });
}

// The gradient of entry p, -<u_i, w_j> for its row i = rows[p], added up over `batch` members that share one
// matrix, else that of member 0. u and w are (batch, n, k).
template <class Team, class T, class I>
LS_DEVICE void entry_gradient(const Team& team, const I* rows, const I* idx, const I* perm, int64_t p,
                              const T* u, const T* w, int64_t step, int64_t k, int64_t batch, T* ga) {
  const int64_t i = static_cast<int64_t>(rows[p]) * k, j = static_cast<int64_t>(idx[p]) * k;
  typename Team::template Own<T> sum;
  team.each([&](int lane) {
    for (int64_t m = 0; m < batch; ++m)
      for (int64_t c = lane; c < k; c += Team::size)
        sum[lane] = plus_product(sum[lane], -u[m * step + i + c], w[m * step + j + c]);
  });
  const T total = team.sum(sum);
  team.first([&] { ga[perm ? static_cast<int64_t>(perm[p]) : p] = total; });
}

// --- a chain ---

template <class T>
struct Affine {
  T s, m;  // x -> s + m x
  LS_BOTH T of(T x) const { return plus_product(s, m, x); }
};
template <class T>
LS_BOTH Affine<T> after(const Affine<T>& first, const Affine<T>& then) {
  return {then.of(first.s), times(then.m, first.m)};
}

// One column of one system; row t in the order of the sweep.
template <class T, class I>
struct Chain {
  Triangle<T, I> S;  // values: of this system
  const T* b;
  T* x;
  int64_t k;

  LS_DEVICE int64_t row(int64_t t) const { return S.upper ? S.rows - 1 - t : t; }
  LS_DEVICE T& at(int64_t t) const { return x[row(t) * k]; }
  // Every row but the first has one entry beside the diagonal: places follow from that.
  LS_DEVICE Affine<T> map(int64_t t) const {
    const int64_t i = row(t);
    const T r = S.unit ? T(1) : reciprocal(S.values[S.place(2 * i)]);
    const T s = times(b[i * k], r);
    if (t == 0) return {s, T(0)};
    const int64_t beside = S.unit ? i - !S.upper : 2 * i + (S.upper ? 1 : -1);
    return {s, -times(S.values[S.place(beside)], r)};
  }
  // Rows t0 <= t < t1 one after another, from `before` on: the last result.
  template <bool Write>
  LS_DEVICE T walk(int64_t t0, int64_t t1, T before) const {
    for (int64_t t = t0; t < t1; ++t) {
      before = map(t).of(before);
      if (Write) at(t) = before;
    }
    return before;
  }
};

// Maps of all lanes, composed with those of the lanes before: parts holds twice as many as there are lanes,
// and begins with theirs. Returns where the results are; all lanes may read them.
template <class Team, class T>
LS_DEVICE Affine<T>* scan(const Team& team, Affine<T>* parts) {
  Affine<T>*from = parts, *to = parts + Team::size;
  for (int h = 1; h < Team::size; h *= 2) {
    team.sync();
    team.each([&](int lane) { to[lane] = lane < h ? from[lane] : after(from[lane - h], from[lane]); });
    Affine<T>* const swapped = from;
    from = to, to = swapped;
  }
  team.sync();
  return from;
}

// Does any lane say so? Told to all.
template <class Team>
LS_DEVICE bool any(const Team& team, typename Team::template Own<bool>& says) {
#ifdef __CUDACC__
  return __syncthreads_or(says[team.lane]) != 0;
#else
  bool found = false;
  team.each([&](int lane) { found = found || says[lane]; });
  return found;
#endif
}

// A chunk has R rows a lane; this is what one lane knows of its own.
template <int R, class T>
struct LaneRows {
  Affine<T> map[R];
  T x[R];
};

// The maps of rows t0 <= t < t1, a chunk, lane by lane into `rows`; those of whole lanes into `parts`.
template <int R, class Team, class T, class I>
LS_DEVICE void lane_maps(const Team& team, const Chain<T, I>& C, int64_t t0, int64_t t1,
                         typename Team::template Own<LaneRows<R, T>>& rows, Affine<T>* parts) {
  team.each([&](int lane) {
    Affine<T> whole{0, 1};
    LS_UNROLL
    for (int e = 0; e < R; ++e) {
      const int64_t t = t0 + lane * R + e;
      const Affine<T> map = t < t1 ? C.map(t) : Affine<T>{0, 1};
      rows[lane].map[e] = map;
      whole = e == 0 ? map : after(whole, map);
    }
    parts[lane] = whole;
  });
}

// The map of a chunk as a whole.
template <int R, class Team, class T, class I>
LS_DEVICE void chunk_map(const Team& team, const Chain<T, I>& C, int64_t t0, int64_t t1, Affine<T>* parts,
                         Affine<T>* out) {
  typename Team::template Own<LaneRows<R, T>> rows;
  lane_maps<R>(team, C, t0, t1, rows, parts);
  const Affine<T>* const whole = scan(team, parts);
  team.first([&] { *out = whole[Team::size - 1]; });
  team.sync();
}

// The results of a chunk, after x = before. Where that is finite and a composed map is not, row by row:
// factors overflowed, or the results do.
template <int R, class Team, class T, class I>
LS_DEVICE void solve_chunk(const Team& team, const Chain<T, I>& C, int64_t t0, int64_t t1, T before,
                           Affine<T>* parts) {
  typename Team::template Own<LaneRows<R, T>> rows;
  typename Team::template Own<bool> bad;
  lane_maps<R>(team, C, t0, t1, rows, parts);
  const Affine<T>* const whole = scan(team, parts);
  team.each([&](int lane) {
    T x = lane == 0 ? before : whole[lane - 1].of(before);
    LS_UNROLL
    for (int e = 0; e < R; ++e) rows[lane].x[e] = x = rows[lane].map[e].of(x);
    bad[lane] = !finite(x);
  });
  if (any(team, bad) && finite(before)) {
    team.first([&] { C.template walk<true>(t0, t1, before); });
  } else {
    team.each([&](int lane) {
      LS_UNROLL
      for (int e = 0; e < R; ++e)
        if (t0 + lane * R + e < t1) C.at(t0 + lane * R + e) = rows[lane].x[e];
    });
  }
  team.sync();
}

// Results at the ends of the chunks of `width` rows, from their maps: as many chunks at a time as there are
// lanes.
template <class Team, class T, class I>
LS_DEVICE void chunk_ends(const Team& team, const Chain<T, I>& C, int64_t width, const Affine<T>* maps,
                          Affine<T>* parts, T* ends) {
  const int64_t chunks = (C.S.rows + width - 1) / width;
  typename Team::template Own<bool> bad;
  typename Team::template Own<T> end;
  for (int64_t first = 0; first < chunks; first += Team::size) {
    const T before = first == 0 ? T(0) : ends[first - 1];
    team.each([&](int lane) { parts[lane] = first + lane < chunks ? maps[first + lane] : Affine<T>{0, 1}; });
    const Affine<T>* const whole = scan(team, parts);
    team.each([&](int lane) {
      end[lane] = whole[lane].of(before);
      bad[lane] = !finite(end[lane]);
    });
    if (any(team, bad) && finite(before)) {
      team.first([&] {
        T x = before;
        for (int64_t c = first; c < first + Team::size && c < chunks; ++c) {
          const int64_t t0 = c * width, t1 = t0 + width < C.S.rows ? t0 + width : C.S.rows;
          const T known = x;
          x = maps[c].of(known);
          if (!finite(x) && finite(known)) x = C.template walk<false>(t0, t1, known);
          ends[c] = x;
        }
      });
    } else {
      team.each([&](int lane) {
        if (first + lane < chunks) ends[first + lane] = end[lane];
      });
    }
    team.sync();
  }
}

}  // namespace learnsolve::cuda
