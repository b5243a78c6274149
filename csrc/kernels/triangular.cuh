// T x = b for a triangular T on a device, by the rule of kernels/triangular.h,
//
//     x_i = b_i r_i - sum_j (t_ij r_i) x_j,   r_i = 1 / t_ii (1 for a unit diagonal),
//
// the farthest column first. A row is solved by a team of 1, 8 or 32 lanes, whichever kernel solves it, so it
// has the same bits in all of them. Checking the diagonal for zeros would wait for the device: a row whose
// reciprocal is infinite is NaN, and so is what depends on it.
#pragma once

#include <type_traits>

#include "kernels/launch.cuh"

namespace learnsolve::cuda {

// Numbers that threads of one launch hand to one another: whoever needs one polls it until it is stored. A
// place that nothing has been stored in holds the NaN whose bits are all set; no number that is stored is
// that one. A number is there as a whole or not at all, so nothing else tells that it is, and no fence is
// needed.
//
// Whoever is waited for must be running or have run: blocks take what they compute by tickets (take_ticket),
// in an order in which nothing waits for what is later, so that no block waits for one that has not begun.

template <class T>
using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

template <class T>
LS_DEVICE Bits<T> peek(const T* p) {
#ifdef __CUDACC__
  return *reinterpret_cast<const volatile Bits<T>*>(p);
#else
  return __atomic_load_n(reinterpret_cast<const Bits<T>*>(p), __ATOMIC_RELAXED);
#endif
}

template <class T>
LS_DEVICE void hand_over(T* p, T value) {
  auto bits = __builtin_bit_cast(Bits<T>, value);
  if (bits == static_cast<Bits<T>>(-1)) --bits;  // another NaN
#ifdef __CUDACC__
  *reinterpret_cast<volatile Bits<T>*>(p) = bits;
#else
  __atomic_store_n(reinterpret_cast<Bits<T>*>(p), bits, __ATOMIC_RELAXED);
#endif
}

// What is stored at p, where `seen` was.
template <class T>
LS_DEVICE T awaited(const T* p, Bits<T> seen LS_WHERE) {
  while (seen == static_cast<Bits<T>>(-1)) {
#ifndef __CUDACC__
    learnsolve::emulator::spin(p, where);
#endif
    seen = peek(p);
  }
  return __builtin_bit_cast(T, seen);
}

// The next of `total` pieces of work, the same for all threads of the block; from `total` on there are none.
// Tickets begin at 0, and are at 0 again when all blocks have been told that there are none.
LS_DEVICE unsigned take_ticket(unsigned* tickets, unsigned total) {
  LS_SHARED(taken, unsigned);
  __syncthreads();
  if (threadIdx.x == 0) taken = atomicInc(tickets, total + gridDim.x - 1);
  __syncthreads();
  return taken;
}

// A product that no addition is fused with, and one that is: every kernel has the same bits.
LS_DEVICE float times(float a, float b) { return __fmul_rn(a, b); }
LS_DEVICE double times(double a, double b) { return __dmul_rn(a, b); }
LS_DEVICE float plus_product(float s, float a, float b) { return __fmaf_rn(a, b, s); }
LS_DEVICE double plus_product(double s, double a, double b) { return __fma_rn(a, b, s); }

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

// Rows hold the entries that are read and no others, sorted: TriangleView of kernels/views.h. `order` has
// the rows by level, from the last one on if `upper`, and then the place of each row in it.
template <class T, class I>
struct Triangle {
  const I* ptr;
  const I* idx;
  const I* perm;
  const I* order;
  const T* values;
  int64_t values_step;  // from one member of the batch to the next
  int64_t rows;
  bool upper, unit;

  LS_BOTH int64_t place(int64_t p) const { return perm ? static_cast<int64_t>(perm[p]) : p; }
  // Row t in the order of the sweep, and when row i has its turn.
  LS_BOTH int64_t row_at(int64_t t) const { return order[upper ? rows - 1 - t : t]; }
  LS_BOTH int64_t turn_of(int64_t i) const { return upper ? rows - 1 - order[rows + i] : order[rows + i]; }
};

// Right-hand sides and results, (batch, rows, k).
template <class T>
struct Sides {
  const T* b;
  T* x;
  int64_t b_step, x_step, k;
};

// Row i of one system: its entries but the diagonal, from the farthest column on.
template <class T, class I>
struct RowEntries {
  const Triangle<T, I>& S;
  int64_t i, first, last;
  int count;
  const T* values;
  T r;

  LS_DEVICE RowEntries(const Triangle<T, I>& S_, int64_t i_, int64_t m)
      : S(S_),
        i(i_),
        first(S.ptr[i]),
        last(S.ptr[i + 1] - 1),
        count(static_cast<int>(last - first) + S.unit),
        values(S.values + m * S.values_step),
        r(S.unit ? T(1) : reciprocal(values[S.place(S.upper ? first : last)])) {}
  LS_DEVICE int64_t place(int e) const { return S.upper ? last - e : first + e; }
  LS_DEVICE int64_t column(int e) const { return S.idx[place(e)]; }
  LS_DEVICE T factor(int e) const { return -times(values[S.place(place(e))], r); }
  LS_DEVICE T start(const Sides<T>& v, int64_t c, int64_t m) const {
    return times(v.b[m * v.b_step + i * v.k + c], r);
  }
};

// use(e, load(e)) for the entries 0 <= e < count of a row, each by one lane of the team: the next U of a lane
// are loaded together, since memory is far.
template <int U, class Team, class Load, class Use>
LS_DEVICE void for_entries(const Team& team, int count, const Load& load, const Use& use) {
  for (int e = team.lane; e < count; e += U * Team::size) {
    decltype(load(0)) loaded[U];
    LS_UNROLL
    for (int u = 0; u < U; ++u) {
      const int at = e + u * Team::size;
      loaded[u] = load(at < count ? at : count - 1);
    }
    LS_UNROLL
    for (int u = 0; u < U; ++u)
      if (e + u * Team::size < count) use(e + u * Team::size, loaded[u]);
  }
}

// Row i for column c of member m by one team: entry e, counted from the farthest column, by lane e of its N.
// All but the results of other rows is there before the first of these is waited for.
template <int N, class T, class I>
LS_DEVICE void solve_row(const Team<N>& team, const Triangle<T, I>& S, const Sides<T>& v, int64_t i,
                         int64_t c, int64_t m) {
  struct Term {
    T factor;
    const T* at;
    Bits<T> seen;
  };
  T* const x = v.x + m * v.x_step + c;
  const RowEntries<T, I> row(S, i, m);
  T sum = team.first() ? row.start(v, c, m) : T(0);
  for_entries<4>(
      team, row.count,
      [&](int e) {
        const T* const at = x + row.column(e) * v.k;
        return Term{row.factor(e), at, peek(at)};
      },
      [&](int, const Term& term) { sum = plus_product(sum, term.factor, awaited(term.at, term.seen)); });
  sum = team.sum(sum);
  if (team.first()) hand_over(x + i * v.k, sum);
}

// All rows of `systems` = members x columns, by blocks that draw tickets for them.
template <int Lanes, class T, class I>
LS_KERNEL(kThreads)
handed_rows_kernel(LS_ARGUMENT Triangle<T, I> S, LS_ARGUMENT Sides<T> v, int64_t systems, unsigned* tickets) {
  const Team<Lanes> team;
  const int64_t each = kThreads / Lanes, items = S.rows * systems;
  const unsigned total = static_cast<unsigned>((items + each - 1) / each);
  for (unsigned ticket; (ticket = take_ticket(tickets, total)) < total;) {
    const int64_t item = ticket * each + threadIdx.x / Lanes, system = item % systems;
    if (item < items) solve_row(team, S, v, S.row_at(item / systems), system % v.k, system / v.k);
  }
}

// Narrow levels, by one block: a chunk of rows with all that their sums are made of, in shared memory. Entry
// e of row t is number e * (rows of a chunk) + t there. at: the result that it is multiplied by, one of the
// chunk's own rows, or one from before, of which each entry has a copy. Rows of a chunk are cut into pieces,
// each of one level.
template <class T>
struct ChunkRoom {
  T factor[kChunkEntries], x[kChunkRows + kChunkEntries];
  uint16_t at[kChunkEntries], count[kChunkRows], piece[kChunkRows + 1];
};

// Chunks have `size` rows, at most kChunkRows, and no row more than kChunkEntries / size entries. Chunk c has
// the pieces first[c] to first[c + 1], piece q the rows bounds[q] to bounds[q + 1] in the order of the sweep.
template <class I>
struct ChunkTable {
  const I* first;
  int64_t size, rows;
  LS_BOTH int64_t chunks() const { return (rows + size - 1) / size; }
  LS_DEVICE const I* bounds() const { return first + chunks() + 1; }
};

// A row's first entries, read before the rows that it waits for are done.
template <class T>
struct RowAhead {
  int t, size, count;
  T factor[kEntriesAhead];
  int at[kEntriesAhead];

  LS_DEVICE RowAhead(const ChunkRoom<T>& room, int t_, int rows, int size_)
      : t(t_), size(size_), count(t < rows ? room.count[t] : 0) {
    LS_UNROLL
    for (int e = 0; e < kEntriesAhead; ++e)
      if (e < count) factor[e] = room.factor[e * size + t], at[e] = room.at[e * size + t];
  }
  LS_DEVICE void solve(ChunkRoom<T>& room) const {
    T sum = room.x[t];
    LS_UNROLL
    for (int e = 0; e < kEntriesAhead; ++e)
      if (e < count) sum = plus_product(sum, factor[e], room.x[at[e]]);
    for (int e = kEntriesAhead; e < count; ++e)
      sum = plus_product(sum, room.factor[e * size + t], room.x[room.at[e * size + t]]);
    room.x[t] = sum;
  }
};

// The pieces of a chunk by `lanes` threads, with wait() between them.
template <class T, class Wait>
LS_DEVICE void solve_pieces(ChunkRoom<T>& room, int pieces, int size, int lanes, const Wait& wait) {
  const int lane = static_cast<int>(threadIdx.x), rows = room.piece[pieces];
  RowAhead<T> next(room, lane, rows, size);
  for (int q = 0; q < pieces; ++q) {
    const int end = room.piece[q + 1];
    const RowAhead<T> own = next;
    next = RowAhead<T>(room, end + lane, rows, size);
    if (own.t < end) own.solve(room);
    for (int t = own.t + lanes; t < end; t += lanes) RowAhead<T>(room, t, rows, size).solve(room);
    wait();
  }
}

// Column c of member m.
template <class T, class I>
LS_DEVICE void solve_chunks(const Triangle<T, I>& S, const Sides<T>& v, const ChunkTable<I>& table, int64_t c,
                            int64_t m, ChunkRoom<T>& room) {
  const int lane = static_cast<int>(threadIdx.x), size = static_cast<int>(table.size);
  T* const x = v.x + m * v.x_step + c;
  for (int64_t chunk = 0; chunk < table.chunks(); ++chunk) {
    const int64_t q0 = table.first[chunk], t0 = chunk * size;
    const I* const bounds = table.bounds() + q0;
    const int pieces = static_cast<int>(table.first[chunk + 1] - q0);
    const int rows = static_cast<int>(bounds[pieces] - t0);
    bool wide = false;
    for (int q = lane; q <= pieces; q += kThreads) {
      room.piece[q] = static_cast<uint16_t>(bounds[q] - t0);
      wide = wide || (q < pieces && bounds[q + 1] - bounds[q] > 32);
    }
    for (int t = lane; t < rows; t += kThreads) {
      const RowEntries<T, I> row(S, S.row_at(t0 + t), m);
      room.count[t] = static_cast<uint16_t>(row.count);
      room.x[t] = row.start(v, c, m);
      for (int e = 0; e < row.count; ++e) {
        const int place = e * size + t;
        const int64_t j = row.column(e), turn = S.turn_of(j);
        const int at = static_cast<int>(turn < t0 ? kChunkRows + place : turn - t0);
        if (turn < t0) room.x[at] = x[j * v.k];
        room.factor[place] = row.factor(e);
        room.at[place] = static_cast<uint16_t>(at);
      }
    }
    if (__syncthreads_or(wide))
      solve_pieces(room, pieces, size, kThreads, [] { __syncthreads(); });
    else if (lane < 32)
      solve_pieces(room, pieces, size, 32, [] { __syncwarp(); });
    __syncthreads();
    for (int t = lane; t < rows; t += kThreads) x[S.row_at(t0 + t) * v.k] = room.x[t];
    __syncthreads();
  }
}

template <class T, class I>
LS_KERNEL(kThreads)
chunks_of_rows_kernel(LS_ARGUMENT Triangle<T, I> S, LS_ARGUMENT Sides<T> v, int64_t systems,
                      LS_ARGUMENT ChunkTable<I> table) {
  LS_SHARED(room, ChunkRoom<T>);
  for_blocks(systems, [&](int64_t q) { solve_chunks(S, v, table, q % v.k, q / v.k, room); });
}

// T x = b for a triangular T that is bidiagonal, each row with an entry next to its diagonal: a scan of
// affine maps. In the order of the sweep x_t = s_t + c_t x_{t-1}, by the rule above, so a
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
