// T x = b for a triangular T with a narrow band (kernels/band.cuh): a scan of affine maps over chunks of
// fixed size, each with its lanes' maps in shared memory.
//
// A lane takes R consecutive rows. Neighboring lanes read R rows apart, but a warp reads all of a piece of
// memory, most of it from the first-level cache. Its rows stay in registers. They are solved first with the
// right-hand side from zeros and, without it, from each unit vector of the W results before, which gives the
// lane's map; and again after the scan, from the results that are known by then.
//
// If the results before a lane are not finite, because factors overflow or the data are not finite, the lanes
// of the chunk run one after another. If products of factors underflow, the contribution of the rows before
// is taken as zero, although later rows may amplify it again.
#pragma once

#include "kernels/band.cuh"

namespace learnsolve::cuda {

// What lanes exchange, number by number: neighboring lanes have neighboring words.
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

// Is this true in any lane? All lanes receive the answer.
template <class Team>
LS_DEVICE bool any(const Team& team, typename Team::template Own<bool>& says) {
  return __syncthreads_or(says[team.lane]) != 0;
}

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
