// T x = b for a triangular T whose entries all lie within W <= 4 of the diagonal: bidiagonal matrices,
// factors of pentadiagonal ones, gaps or not. What a stretch of rows makes of the W results before it is an
// affine map, and maps compose: a scan over chunks of fixed size, each with its lanes' maps in shared memory.
//
// A lane takes R consecutive rows. Neighbouring lanes read R rows apart, but a warp reads all of a piece of
// memory, most of it from the first-level cache. Its rows stay in registers: first they are walked with the
// right-hand side from nothing and, without it, from each unit vector of the W results before, which is the
// lane's map; then, after the scan, from the results that are known by then.
//
// Rows are those of kernels/triangular.cuh, an entry that is not there takes no part: where what comes before
// a lane is not finite, because factors overflow or numbers are so, the lanes of the chunk walk one after
// another, and NaN reaches what depends on it and nothing else. Where products of factors underflow, what
// comes from before is taken as nothing, though later rows may amplify it again.
#pragma once

#include "kernels/triangular.cuh"

namespace learnsolve::cuda {

constexpr int kWidestBand = 4;

// The results of the W rows before a row, the nearest first.
template <int W, class T>
struct Window {
  T x[W];

  LS_BOTH void push(T next) {
    LS_UNROLL
    for (int d = W - 1; d > 0; --d) x[d] = x[d - 1];
    x[0] = next;
  }
  LS_BOTH int count_finite() const {
    int count = 0;
    LS_UNROLL
    for (int d = 0; d < W; ++d) count += finite(x[d]);
    return count;
  }
};

// The window after some rows from that before: s + sum_d m[d] before_d.
template <int W, class T>
struct Affine {
  static constexpr int kNumbers = W * W + W;
  Window<W, T> s, m[W];

  LS_BOTH Window<W, T> from(Window<W, T> sum, const Window<W, T>& before) const {
    LS_UNROLL
    for (int d = 0; d < W; ++d) {
      LS_UNROLL
      for (int e = 0; e < W; ++e) sum.x[e] = plus_product(sum.x[e], m[d].x[e], before.x[d]);
    }
    return sum;
  }
  LS_BOTH Window<W, T> of(const Window<W, T>& before) const { return from(s, before); }
};
template <int W, class T>
LS_BOTH Affine<W, T> after(const Affine<W, T>& first, const Affine<W, T>& then) {
  Affine<W, T> both;
  both.s = then.of(first.s);
  LS_UNROLL
  for (int d = 0; d < W; ++d) both.m[d] = then.from(Window<W, T>{}, first.m[d]);
  return both;
}

// x_t = s + sum of c[d-1] x_{t-d} over those d whose bit d-1 is set.
template <int W, class T>
struct BandRow {
  T s, c[W];
  unsigned has;

  LS_BOTH T of(T sum, const Window<W, T>& before) const {
    LS_UNROLL
    for (int d = W - 1; d >= 0; --d)
      if (has >> d & 1) sum = plus_product(sum, c[d], before.x[d]);
    return sum;
  }
};

// Entries beside the diagonal in the first t rows, in the order of the sweep, of a band without gaps.
LS_BOTH int64_t beside_before(int64_t t, int64_t width) {
  return t <= width ? t * (t - 1) / 2 : t * width - width * (width + 1) / 2;
}

// One column of one system; row t in the order of the sweep.
template <int W, class T, class I>
struct Band {
  Triangle<T, I> S;  // values: of this system
  const T* b;
  T* x;
  int64_t k;
  int64_t full;  // its width, if no entry of the band is missing: places follow from that; else 0

  LS_DEVICE int64_t row(int64_t t) const { return S.upper ? S.rows - 1 - t : t; }
  LS_DEVICE T& at(int64_t t) const { return x[row(t) * k]; }
  // Where the entries of row t lie: first <= p < end.
  LS_DEVICE void bounds(int64_t t, I& first, I& end) const {
    if (full) {
      const int64_t diagonals = S.unit ? 0 : 1, before = beside_before(t, full) + t * diagonals;
      const int64_t length = (t < full ? t : full) + diagonals;
      const int64_t p = S.upper ? beside_before(S.rows, full) + S.rows * diagonals - before - length : before;
      first = static_cast<I>(p), end = static_cast<I>(p + length);
    } else {
      first = S.ptr[row(t)], end = S.ptr[row(t) + 1];
    }
  }
  // Those before row t0 > 0.
  LS_DEVICE Window<W, T> results_before(int64_t t0) const {
    Window<W, T> before{};
    LS_UNROLL
    for (int d = 0; d < W; ++d)
      if (d < t0) before.x[d] = at(t0 - 1 - d);
    return before;
  }
  // Is no result finite any more? In a band without gaps each depends on one of the W before it.
  LS_DEVICE bool lost(const Window<W, T>& before) const { return full > 0 && before.count_finite() == 0; }
};

// What lanes tell one another, number by number: neighbouring lanes have neighbouring words.
template <int Lanes, int W, class T>
struct LaneMaps {
  T number[Affine<W, T>::kNumbers][Lanes];

  LS_DEVICE void put(int lane, const Window<W, T>& window, int at = 0) {
    LS_UNROLL
    for (int d = 0; d < W; ++d) number[at + d][lane] = window.x[d];
  }
  LS_DEVICE Window<W, T> window(int lane, int at = 0) const {
    Window<W, T> out;
    LS_UNROLL
    for (int d = 0; d < W; ++d) out.x[d] = number[at + d][lane];
    return out;
  }
  LS_DEVICE void put(int lane, const Affine<W, T>& map) {
    put(lane, map.s);
    LS_UNROLL
    for (int d = 0; d < W; ++d) put(lane, map.m[d], (d + 1) * W);
  }
  LS_DEVICE Affine<W, T> map(int lane) const {
    Affine<W, T> out;
    out.s = window(lane);
    LS_UNROLL
    for (int d = 0; d < W; ++d) out.m[d] = window(lane, (d + 1) * W);
    return out;
  }
};

// All of a block, in memory that its lanes share.
template <int Lanes, int W, class T>
struct ScanRoom {
  LaneMaps<Lanes, W, T> maps[2];
};

// The lanes' maps, in maps[0], each composed with those of the lanes before. Returns where they are; all
// lanes may read them.
template <class Team, int W, class T>
LS_DEVICE const LaneMaps<Team::size, W, T>& scan(const Team& team, ScanRoom<Team::size, W, T>& room) {
  int from = 0;
  for (int h = 1; h < Team::size; h *= 2) {
    team.sync();
    const auto& done = room.maps[from];
    team.each([&](int lane) {
      const Affine<W, T> own = done.map(lane);
      room.maps[1 - from].put(lane, lane < h ? own : after(done.map(lane - h), own));
    });
    from = 1 - from;
  }
  team.sync();
  return room.maps[from];
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

// The rows of a lane: R of the R Team::size of a chunk.
template <int R, int W, class T>
struct LaneRows {
  BandRow<W, T> row[R];

  // Rows t0 to t0 + R, in steps that take what the one before has read as it is: so all of a step is waited
  // for at once. Beyond the last row there are no entries: results are zeros that nobody reads.
  template <class I>
  LS_DEVICE void read(const Band<W, T, I>& A, int64_t t0) {
    const Triangle<T, I>& S = A.S;
    I first[R], end[R], diagonal[R], place[R][W], column[R][W];
    T c[R][W], b[R], r[R];
    const auto none = [&](int e) { return t0 + e >= S.rows; };
    const auto beside = [&](int e) { return none(e) ? 0 : static_cast<int>(end[e] - first[e]) - !S.unit; };
    LS_UNROLL
    for (int e = 0; e < R; ++e)
      if (!none(e)) A.bounds(t0 + e, first[e], end[e]);
    LS_UNROLL
    for (int e = 0; e < R; ++e) {
      b[e] = none(e) ? T(0) : A.b[A.row(t0 + e) * A.k];
      if (!S.unit && !none(e)) diagonal[e] = static_cast<I>(S.place(S.upper ? first[e] : end[e] - 1));
      LS_UNROLL
      for (int h = 0; h < W; ++h) {
        if (h >= beside(e)) continue;
        const int64_t p = S.upper ? end[e] - 1 - h : first[e] + h;  // the farthest first
        place[e][h] = static_cast<I>(S.place(p));
        if (!A.full) column[e][h] = S.idx[p];
      }
    }
    LS_UNROLL
    for (int e = 0; e < R; ++e) {
      r[e] = S.unit || none(e) ? T(1) : S.values[diagonal[e]];
      LS_UNROLL
      for (int h = 0; h < W; ++h)
        if (h < beside(e)) c[e][h] = S.values[place[e][h]];
    }
    LS_UNROLL
    for (int e = 0; e < R; ++e) {
      if (!S.unit) r[e] = reciprocal(r[e]);
      row[e] = {times(b[e], r[e]), {}, 0};
      LS_UNROLL
      for (int h = 0; h < W; ++h) {
        if (h >= beside(e)) continue;
        const int64_t i = A.row(t0 + e), ahead = A.full ? 0 : column[e][h] - i;
        const int64_t away = A.full ? beside(e) - h : S.upper ? ahead : -ahead;
        LS_UNROLL
        for (int d = 0; d < W; ++d)
          if (away == d + 1) row[e].c[d] = -times(c[e][h], r[e]), row[e].has |= 1u << d;
      }
    }
  }
  LS_DEVICE Affine<W, T> map() const {
    Affine<W, T> all{};
    LS_UNROLL
    for (int d = 0; d < W; ++d) all.m[d].x[d] = 1;
    LS_UNROLL
    for (int e = 0; e < R; ++e) {
      all.s.push(row[e].of(row[e].s, all.s));
      LS_UNROLL
      for (int d = 0; d < W; ++d) all.m[d].push(row[e].of(T(0), all.m[d]));
    }
    return all;
  }
  // f(e, x) for each, from the results before on; those after the last.
  template <class F>
  LS_DEVICE Window<W, T> walk(Window<W, T> before, const F& f) const {
    LS_UNROLL
    for (int e = 0; e < R; ++e) {
      before.push(row[e].of(row[e].s, before));
      f(e, before.x[0]);
    }
    return before;
  }
};

// The lanes of a chunk one after another: what comes before each into `start`. Returns the end of the chunk.
template <int R, class Team, int W, class T>
LS_DEVICE Window<W, T> walk_in_turn(const Team& team, typename Team::template Own<LaneRows<R, W, T>>& rows,
                                    const Window<W, T>& before, ScanRoom<Team::size, W, T>& room,
                                    typename Team::template Own<Window<W, T>>& start) {
  auto& ends = room.maps[0];
  for (int turn = 0; turn < Team::size; ++turn) {
    team.sync();
    team.each([&](int lane) {
      if (lane != turn) return;
      start[lane] = lane == 0 ? before : ends.window(lane - 1);
      ends.put(lane, rows[lane].walk(start[lane], [](int, T) {}));
    });
  }
  team.sync();
  return ends.window(Team::size - 1);
}

// The map of the chunk from row t0 on, which has a row after it.
template <int R, class Team, int W, class T, class I>
LS_DEVICE void chunk_map(const Team& team, const Band<W, T, I>& A, int64_t t0,
                         ScanRoom<Team::size, W, T>& room, Affine<W, T>* out) {
  team.each([&](int lane) {
    LaneRows<R, W, T> rows;
    rows.read(A, t0 + lane * R);
    room.maps[0].put(lane, rows.map());
  });
  const auto& whole = scan(team, room);
  team.first([&] { *out = whole.map(Team::size - 1); });
  team.sync();
}

// The results of the chunk from row t0 on.
template <int R, class Team, int W, class T, class I>
LS_DEVICE void solve_chunk(const Team& team, const Band<W, T, I>& A, int64_t t0, const Window<W, T>& before,
                           ScanRoom<Team::size, W, T>& room) {
  typename Team::template Own<LaneRows<R, W, T>> rows;
  typename Team::template Own<Window<W, T>> start;
  typename Team::template Own<bool> bad;
  team.each([&](int lane) {
    rows[lane].read(A, t0 + lane * R);
    room.maps[0].put(lane, rows[lane].map());
  });
  const auto& whole = scan(team, room);
  team.each([&](int lane) {
    start[lane] = lane == 0 ? before : whole.map(lane - 1).of(before);
    bad[lane] = start[lane].count_finite() < W;
  });
  if (any(team, bad) && !A.lost(before)) walk_in_turn<R>(team, rows, before, room, start);
  team.each([&](int lane) {
    const int64_t first = t0 + lane * R;
    rows[lane].walk(start[lane], [&](int e, T x) {
      if (first + e < A.S.rows) A.at(first + e) = x;
    });
  });
  team.sync();
}

// What comes after each of the first `count` chunks, from their maps: as many at a time as there are lanes.
template <int R, class Team, int W, class T, class I>
LS_DEVICE void chunk_ends(const Team& team, const Band<W, T, I>& A, int64_t count, const Affine<W, T>* maps,
                          ScanRoom<Team::size, W, T>& room, Window<W, T>* ends) {
  typename Team::template Own<Window<W, T>> end;
  typename Team::template Own<bool> bad;
  for (int64_t first = 0; first < count; first += Team::size) {
    Window<W, T> before{};
    if (first > 0) before = ends[first - 1];
    team.each([&](int lane) {
      room.maps[0].put(lane, first + lane < count ? maps[first + lane] : Affine<W, T>{});
    });
    const auto& whole = scan(team, room);
    team.each([&](int lane) {
      end[lane] = whole.map(lane).of(before);
      bad[lane] = end[lane].count_finite() < W;
    });
    if (any(team, bad) && !A.lost(before)) {
      for (int64_t c = first; c < first + Team::size && c < count; ++c) {
        Window<W, T> last = maps[c].of(before);  // by all lanes
        if (last.count_finite() < W && !A.lost(before)) {
          typename Team::template Own<LaneRows<R, W, T>> rows;
          typename Team::template Own<Window<W, T>> start;
          team.each([&](int lane) { rows[lane].read(A, (c * Team::size + lane) * R); });
          last = walk_in_turn<R>(team, rows, before, room, start);
        }
        team.first([&] { ends[c] = last; });
        before = last;
      }
    } else {
      team.each([&](int lane) {
        if (first + lane < count) ends[first + lane] = end[lane];
      });
    }
    team.sync();
  }
}

}  // namespace learnsolve::cuda
