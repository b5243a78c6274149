// Passes over blocks of vectors, n x k and row-major, with sums a column: chunk by chunk of rows (grid.cuh),
// each by one block of threads. A pass is a struct with
//
//     kSums             how many sums it makes
//     at(place, sums)   its work on the numbers at a place, V at once, and what they add to the sums
//     skips()           is there nothing to do?
//
// and serves as the end of a product too, where the results of a row go to at(place, result, sums). No bit
// depends on the alignment of any array: it decides how numbers are loaded, not which thread adds them up.
#pragma once

#include "kernels/grid.cuh"

namespace learnsolve::cuda {

// Numbers in 16 bytes.
template <class T>
constexpr int kPack = static_cast<int>(16 / sizeof(T));

// Element o of the vectors and the V - 1 after it: rows i, ... of the only column, or columns c, ... of row
// i.
template <bool One, int V>
struct Place {
  int64_t o, i, c;
  bool packs;  // can arrays be read by packs here?

  template <class T>
  LS_DEVICE Pack<T, V> get(const T* v) const {
    if (packs) return load_pack<V>(v + o);
    Pack<T, V> values;
    LS_UNROLL
    for (int e = 0; e < V; ++e) values.v[e] = v[o + e];
    return values;
  }
  template <class T>
  LS_DEVICE void set(T* v, const Pack<T, V>& values) const {
    if (packs) return store_pack<V>(v + o, values);
    LS_UNROLL
    for (int e = 0; e < V; ++e) v[o + e] = values.v[e];
  }
  // Number e of the place: its column's entry of a, and its row's of d.
  template <class T>
  LS_DEVICE T coefficient(const T* a, int e) const {
    return One ? a[0] : a[c + e];
  }
  template <class T>
  LS_DEVICE T of_row(const T* d, int e) const {
    return One ? d[i + e] : d[i];
  }
};

// A block of vectors for each member of a batch.
template <class T>
struct Vectors {
  T* p = nullptr;
  int64_t step = 0;
  LS_BOTH T* of(int64_t b) const { return p ? p + b * step : nullptr; }
};

// Partial sums: number s of member b is at[s] + b * chunks * k, chunks x k.
template <class T>
struct Partials {
  T* at[2];
};

template <class T, int S>
struct PassScratch {
  T parts[S > 0 ? S : 1][kThreads * kPack<T>];
};

// parts[s], `slots` times `width` numbers, to the partial sums of columns c0 to c1 of a chunk.
template <int S, class Team, class T, int Room>
LS_DEVICE void write_partials(const Team& team, PassScratch<T, Room>& scratch, int slots, int width,
                              const Partials<T>& partials, int64_t line, int64_t k, int64_t c0) {
  if constexpr (S > 0) {
    team.sync();
    for (int s = 0; s < S; ++s) add_slots(team, scratch.parts[s], slots, width);
    team.each([&](int lane) {
      if (lane < width && c0 + lane < k)
        for (int s = 0; s < S; ++s) partials.at[s][line * k + c0 + lane] = scratch.parts[s][lane];
    });
    team.sync();
  }
}

// A pass over one chunk. One: of the only column, V rows at once; else V columns at once, k a multiple of V.
// `line` is where its partial sums go.
template <bool One, int V, class Team, class T, int Room, class Pass>
LS_DEVICE void pass_chunk(const Team& team, const Pass& pass, int64_t r0, int64_t r1, int64_t k, bool packs,
                          const Partials<T>& partials, int64_t line, PassScratch<T, Room>& scratch) {
  constexpr int S = Pass::kSums, N = Team::size;
  static_assert(S <= Room || S == 0);
  if constexpr (One) {
    team.each([&](int lane) {
      Pack<T, V> sums[S + 1] = {};
      Pack<T, 1> single[S + 1] = {};
      for (int64_t i = r0 + lane * V; i < r1; i += N * V) {
        if (i + V <= r1) {
          pass.at(Place<true, V>{i, i, 0, packs}, sums);
        } else {
          for (int64_t e = i; e < r1; ++e) pass.at(Place<true, 1>{e, e, 0, false}, single);
        }
      }
      for (int s = 0; s < S; ++s) {
        T sum = single[s].v[0];
        for (int v = 0; v < V; ++v) sum += sums[s].v[v];
        scratch.parts[s][lane] = sum;
      }
    });
    write_partials<S>(team, scratch, N, 1, partials, line, 1, 0);
  } else {
    const int width = columns_together(k / V), slots = N / width;
    for (int64_t c0 = 0; c0 < k; c0 += width * V) {
      team.each([&](int lane) {
        Pack<T, V> sums[S + 1] = {};
        const int64_t c = c0 + lane % width * V;
        if (c < k)
          for (int64_t i = r0 + lane / width; i < r1; i += slots)
            pass.at(Place<false, V>{i * k + c, i, c, packs}, sums);
        for (int s = 0; s < S; ++s)
          for (int v = 0; v < V; ++v) scratch.parts[s][lane * V + v] = sums[s].v[v];
      });
      write_partials<S>(team, scratch, slots, width * V, partials, line, k, c0);
    }
  }
}

// The rows that multiply, for one member.
template <class T, class I>
struct RowsOf {
  const I* ptr;
  const I* idx;
  const T* values;
};

// y_i = sum_p values_p x_{idx_p} for the rows of a chunk, given to pass.at(place, y, sums). Lanes > 0: one
// column, with this number of lanes a row; else V columns at once by one thread.
template <int Lanes, int V, class Team, class T, class I, int Room, class Pass>
LS_DEVICE void product_chunk(const Team& team, const RowsOf<T, I>& A, const T* x, const Pass& pass,
                             int64_t r0, int64_t r1, int64_t k, bool packs, const Partials<T>& partials,
                             int64_t line, PassScratch<T, Room>& scratch) {
  constexpr int S = Pass::kSums, N = Team::size;
  static_assert(S <= 1 && S <= Room);
  if constexpr (Lanes > 0) {
    typename Team::template Own<T> own;
    for_teams<Lanes>(r0, r1, [&](const auto& few, int slot, int64_t i) {
      typename std::remove_cvref_t<decltype(few)>::template Own<T> sum;
      const int64_t begin = A.ptr[i], end = A.ptr[i + 1];
      few.each([&](int lane) {
        for (int64_t p = begin + lane; p < end; p += Lanes) sum[lane] += A.values[p] * x[A.idx[p]];
      });
      const T y = few.sum(sum);
      few.first([&] {
        Pack<T, 1> sums[S + 1] = {};
        pass.at(Place<true, 1>{i, i, 0, false}, Pack<T, 1>{{y}}, sums);
        if (S > 0) own[slot * Lanes] += sums[0].v[0];
      });
    });
    if (S > 0) team.each([&](int lane) { scratch.parts[0][lane] = own[lane]; });
    write_partials<S>(team, scratch, N, 1, partials, line, 1, 0);
  } else {
    const int width = columns_together(k / V), slots = N / width;
    for (int64_t c0 = 0; c0 < k; c0 += width * V) {
      team.each([&](int lane) {
        Pack<T, V> sums[S + 1] = {};
        const int64_t c = c0 + lane % width * V;
        if (c < k)
          for (int64_t i = r0 + lane / width; i < r1; i += slots) {
            Pack<T, V> y{};
            const int64_t end = A.ptr[i + 1];
            for (int64_t p = A.ptr[i]; p < end; ++p) {
              const T a = A.values[p];
              const Pack<T, V> xj = Place<false, V>{A.idx[p] * k + c, 0, 0, packs}.get(x);
              LS_UNROLL
              for (int v = 0; v < V; ++v) y.v[v] += a * xj.v[v];
            }
            pass.at(Place<false, V>{i * k + c, i, c, packs}, y, sums);
          }
        if (S > 0)
          for (int v = 0; v < V; ++v) scratch.parts[0][lane * V + v] = sums[0].v[v];
      });
      write_partials<S>(team, scratch, slots, width * V, partials, line, k, c0);
    }
  }
}

}  // namespace learnsolve::cuda
