// Passes over blocks of vectors, n x k and row-major, with sums a column: chunk by chunk of rows
// (launch.cuh), each by one block of threads. A pass is a struct with
//
//     kSums               how many sums it makes
//     at(place, sums)     its work on the numbers at a place, V at once, and what they add to the sums
//     skips(b)            optional: is there nothing to do for member b of the batch?
//     conclude(b, chunks) optional: by the block, after its work on a chunk of member b
//     of_rows(b)          optional: n numbers, or null. What `at` leaves in sums[kSums] is added to that of
//                         its row. Of the only column, `at` adds to them itself.
//
// or the end of a product, which takes its results: at(place, product, sums), and optionally multiplies(b):
// does member b need the product at all? RowProduct and AfterProduct make a pass of it. No bit depends on the
// alignment of any array: it decides how numbers are loaded, not which thread adds them up.
#pragma once

#include <type_traits>

#include "kernels/launch.cuh"
#include "kernels/products.cuh"

namespace learnsolve::cuda {

// Numbers in 16 bytes.
template <class T>
constexpr int kPack = static_cast<int>(16 / sizeof(T));

// A block of vectors (or a row of coefficients, one a column) for each member of a batch; or none.
template <class T>
struct Vectors {
  T* p = nullptr;
  int64_t step = 0;
  LS_BOTH T* of(int64_t b) const { return p ? p + b * step : nullptr; }
  LS_BOTH operator Vectors<const T>() const { return {p, step}; }
};

// Element o of the vectors of member b and the V - 1 after it: rows i, ... of the only column, or columns
// c, ... of row i.
template <bool One, int V>
struct Place {
  int64_t b, o, i, c;
  static constexpr bool kOne = One;

  // Zeros of what there is none.
  template <class T>
  LS_DEVICE Pack<std::remove_const_t<T>, V> get(const Vectors<T>& v) const {
    return v.p ? load(v.of(b) + o) : Pack<std::remove_const_t<T>, V>{};
  }
  template <class T>
  static LS_DEVICE Pack<std::remove_const_t<T>, V> load(T* from) {
    if (aligned(from)) return load_pack<V>(from);
    Pack<std::remove_const_t<T>, V> values;
    LS_UNROLL
    for (int e = 0; e < V; ++e) values.v[e] = from[e];
    return values;
  }
  template <class T>
  LS_DEVICE void set(const Vectors<T>& v, const Pack<T, V>& values) const {
    if (!v.p) return;
    T* const to = v.of(b) + o;
    if (aligned(to)) return store_pack<V>(to, values);
    LS_UNROLL
    for (int e = 0; e < V; ++e) to[e] = values.v[e];
  }
  // Number e of the place: its column's entry of a, its row's of d.
  template <class T>
  LS_DEVICE T coefficient(const Vectors<T>& a, int e) const {
    return a.of(b)[One ? 0 : c + e];
  }
  template <class T>
  LS_DEVICE T of_row(const Vectors<T>& d, int e) const {
    return d.of(b)[One ? i + e : i];
  }

 private:
  static LS_DEVICE bool aligned(const void* p) { return V == 1 || reinterpret_cast<uintptr_t>(p) % 16 == 0; }
};

// Partial sums: number s of chunk c of member b is at[s][b * chunks + c], k numbers; without them sums are
// dropped.
template <class T>
struct Partials {
  T* at[2] = {};
};

// For S sums of numbers that the threads of a block have, one pack each.
template <int S, class T>
struct ChunkSums {
  T of[S > 0 ? S : 1][S > 0 ? kThreads * kPack<T> : 1];

  // `slots` times `width` numbers, to the partial sums of columns c0 to c0 + width of a chunk.
  LS_DEVICE void write(int slots, int width, const Partials<T>& partials, int64_t line, int64_t k,
                       int64_t c0) {
    if (S == 0 || !partials.at[0]) return;
    const int lane = static_cast<int>(threadIdx.x);
    __syncthreads();
    for (int s = 0; s < S; ++s) {
      add_slots(of[s], slots, width);
      if (lane < width && c0 + lane < k) partials.at[s][line * k + c0 + lane] = of[s][lane];
    }
    __syncthreads();
  }
};

// f(b, r0, r1, line) for the chunks of this block.
template <class Pass, class F>
LS_DEVICE void for_chunks(const Pass& pass, const Chunks& chunks, int64_t batch, const F& f) {
  for_blocks(chunks.count * batch, [&](int64_t line) {
    const int64_t b = line / chunks.count, chunk = line % chunks.count;
    bool skips = false;
    if constexpr (requires { pass.skips(b); }) skips = pass.skips(b);
    if (!skips) f(b, chunks.begin(chunk), chunks.end(chunk), line);
    if constexpr (requires { pass.conclude(b, chunks); }) pass.conclude(b, chunks);
  });
}

// The sum over what `width` lanes have of a row, which is added to number i of `rows`.
template <class T, int V>
LS_DEVICE void add_to_row(T* rows, int64_t i, int width, Pack<T, V>& has) {
  if (!rows) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned mask = (width == 32 ? ~0u : (1u << width) - 1) << lane / width * width;
  T sum = 0;
  for (int v = 0; v < V; ++v) sum += has.v[v];
  for (int h = width / 2; h > 0; h /= 2) sum += __shfl_xor_sync(mask, sum, h);
  if (lane % width == 0) rows[i] += sum;
  has = {};
}

// One: of the only column, V rows at once; else V columns at once, k a multiple of V.
template <bool One, int V, class T, class Pass>
LS_KERNEL(kThreads, 4)
chunk_pass_kernel(LS_ARGUMENT Pass pass, Chunks chunks, int64_t batch, int64_t k, Partials<T> partials) {
  constexpr int S = Pass::kSums;
  LS_SHARED(shared, ChunkSums<S, T>);
  for_chunks(pass, chunks, batch, [&](int64_t b, int64_t r0, int64_t r1, int64_t line) {
    const int lane = static_cast<int>(threadIdx.x);
    if constexpr (One) {
      Pack<T, V> sums[S + 1] = {};
      Pack<T, 1> single[S + 1] = {};
      for (int64_t i = r0 + lane * V; i < r1; i += kThreads * V) {
        if (i + V <= r1) {
          pass.at(Place<true, V>{b, i, i, 0}, sums);
        } else {
          for (int64_t e = i; e < r1; ++e) pass.at(Place<true, 1>{b, e, e, 0}, single);
        }
      }
      for (int s = 0; s < S; ++s) {
        T sum = single[s].v[0];
        for (int v = 0; v < V; ++v) sum += sums[s].v[v];
        shared.of[s][lane] = sum;
      }
      shared.write(kThreads, 1, partials, line, 1, 0);
    } else {
      const int width = columns_together(k / V), slots = kThreads / width;
      for (int64_t c0 = 0; c0 < k; c0 += width * V) {
        Pack<T, V> sums[S + 1] = {};
        const int64_t c = c0 + lane % width * V;
        for (int64_t i = r0 + lane / width; i < r1; i += slots) {
          if (c < k) pass.at(Place<false, V>{b, i * k + c, i, c}, sums);
          if constexpr (requires { pass.of_rows(b); }) add_to_row(pass.of_rows(b), i, width, sums[S]);
        }
        for (int s = 0; s < S; ++s)
          for (int v = 0; v < V; ++v) shared.of[s][lane * V + v] = sums[s].v[v];
        shared.write(slots, width * V, partials, line, k, c0);
      }
    }
  });
}

// What an end of a product says about a member.
template <class End>
struct EndOfProduct {
  static constexpr int kSums = End::kSums;
  End end;
  LS_DEVICE bool skips(int64_t b) const {
    if constexpr (requires { end.skips(b); }) return end.skips(b);
    return false;
  }
  LS_DEVICE bool multiplies(int64_t b) const {
    if constexpr (requires { end.multiplies(b); }) return end.multiplies(b);
    return true;
  }
  LS_DEVICE void conclude(int64_t b, const Chunks& chunks) const {
    if constexpr (requires { end.conclude(b, chunks); }) end.conclude(b, chunks);
  }
};

// Rows that multiply.
template <class T, class I>
struct RowsOf {
  Tiles<I> tiles;
  const I* idx;
  Vectors<const T> values;
};

// y_i = sum_p values_p x_{idx_p} for k columns, V of them by one thread.
template <class T, class I, class End>
struct RowProduct : EndOfProduct<End> {
  RowsOf<T, I> A;
  Vectors<const T> x;
  int64_t k;

  template <int V>
  LS_DEVICE void at(const Place<false, V>& place, Pack<T, V>* sums) const {
    Pack<T, V> y{};
    if (this->multiplies(place.b)) {
      const T* const a = A.values.of(place.b);
      const T* const from = x.of(place.b) + place.c;
      const int64_t last = A.tiles.ptr[place.i + 1];
      for (int64_t p = A.tiles.ptr[place.i]; p < last; ++p) {
        const Pack<T, V> xj = place.load(from + A.idx[p] * k);
        LS_UNROLL
        for (int v = 0; v < V; ++v) y.v[v] += a[p] * xj.v[v];
      }
    }
    this->end.at(place, y, sums);
  }
};

// The same for one column, by the tiles of a chunk.
template <class T, class I, class End>
LS_KERNEL(kThreads, 4)
tile_product_kernel(LS_ARGUMENT RowProduct<T, I, End> P, Chunks chunks, int64_t batch, Partials<T> partials) {
  constexpr int S = End::kSums;
  LS_SHARED(products, T[kTileRoom]);
  LS_SHARED(shared, ChunkSums<S, T>);
  for_chunks(P, chunks, batch, [&](int64_t b, int64_t, int64_t, int64_t line) {
    Pack<T, 1> sums[S + 1] = {};
    const bool multiplies = P.multiplies(b);
    const int end = P.A.tiles.end(line % chunks.count);
    for (int t = P.A.tiles.first(line % chunks.count); t < end; ++t) {
      if (multiplies)
        for_tile<kInOrder>(P.A.tiles.range(t), P.A.idx, nullptr, P.A.values.of(b), P.x.of(b),
                           [&](int q, T a, T x) { products[q] = a * x; });
      __syncthreads();
      Tile tile = P.A.tiles.tile(t);
      if (!multiplies) tile.count = 0;
      add_rows(P.A.tiles, tile, 1, products,
               [&](int64_t i, T sum) { P.end.at(Place<true, 1>{b, i, i, 0}, Pack<T, 1>{{sum}}, sums); });
      __syncthreads();
    }
    for (int s = 0; s < S; ++s) shared.of[s][threadIdx.x] = sums[s].v[0];
    shared.write(kThreads, 1, partials, line, 1, 0);
  });
}

// The end of a product whose results have been written already; without any, it is given zeros.
template <class T, class End>
struct AfterProduct : EndOfProduct<End> {
  Vectors<const T> product;
  template <class At, int V>
  LS_DEVICE void at(const At& place, Pack<T, V>* sums) const {
    this->end.at(place, place.get(product), sums);
  }
};

// y = the product, where there is a place for it; and <u, product>.
template <class T, int Sums>
struct ProductPass {
  static constexpr int kSums = Sums;
  Vectors<const T> u;
  Vectors<T> y;
  const int* active;  // one for each member, or null: does it take part?

  LS_DEVICE bool skips(int64_t b) const { return active && active[b] == 0; }
  template <class At, int V>
  LS_DEVICE void at(const At& place, const Pack<T, V>& product, Pack<T, V>* sums) const {
    place.set(y, product);
    if constexpr (Sums > 0) {
      const Pack<T, V> other = place.get(u);
      LS_UNROLL
      for (int e = 0; e < V; ++e) sums[0].v[e] += other.v[e] * product.v[e];
    }
  }
};

// The end of a product: to += sign factor times it, where factor is a number of each member; or none: 1.
template <class T>
struct AddPass {
  static constexpr int kSums = 0;
  T sign;
  Vectors<const T> factor;
  Vectors<T> to;

  template <class At, int V>
  LS_DEVICE void at(const At& place, const Pack<T, V>& product, Pack<T, V>*) const {
    const T a = factor.p ? sign * factor.of(place.b)[0] : sign;
    Pack<T, V> value = place.get(to);
    LS_UNROLL
    for (int e = 0; e < V; ++e) value.v[e] += a * product.v[e];
    place.set(to, value);
  }
};

// How many of the numbers of a column are not zero.
template <class T>
struct CountPass {
  static constexpr int kSums = 1;
  Vectors<const T> one, two, three;  // or none

  template <class At, int V>
  LS_DEVICE void at(const At& place, Pack<T, V>* sums) const {
    const Pack<T, V> a = place.get(one), b = place.get(two), c = place.get(three);
    LS_UNROLL
    for (int e = 0; e < V; ++e)
      sums[0].v[e] += static_cast<T>((a.v[e] != T(0)) + (b.v[e] != T(0)) + (c.v[e] != T(0)));
  }
};

// out_p = values[perm_p], of each member.
template <class T, class I>
LS_KERNEL(kThreads)
reorder_kernel(const I* perm, const T* values, int64_t count, int64_t batch, T* out) {
  for_aside(batch, [&](int64_t b) {
    for_items<1>(count, [&](const auto&, int64_t p) { out[b * count + p] = values[b * count + perm[p]]; });
  });
}

// Sums over the columns of rows, and over the members of a batch that share the result.

// out_i += sum_c (u_ic + a_c w_ic) w_ic, or u_ic w_ic without a, over the columns that act: all without acts.
template <class T>
struct RowDots {
  Vectors<const T> acts, a, u, w;
  int64_t n, k;
  Groups groups;
  BatchResult<T> out;
};

template <int Lanes, class T>
LS_KERNEL(kThreads)
row_dots_kernel(LS_ARGUMENT RowDots<T> P) {
  for_members(P.groups, [&](const Members& members) {
    T* const out = P.out.of(members);
    for_items<Lanes>(P.n, [&](const auto& team, int64_t i) {
      T sum = 0;
      for (int64_t b = members.b0; b < members.b1; ++b) {
        const T* const acts = P.acts.of(b);
        const T* const a = P.a.of(b);
        for (int64_t c = team.lane; c < P.k; c += Lanes) {
          if (acts && acts[c] == T(0)) continue;
          const T w = P.w.of(b)[i * P.k + c], u = P.u.of(b)[i * P.k + c];
          sum += a ? (u + a[c] * w) * w : u * w;
        }
      }
      const T total = team.sum(sum);
      if (team.first()) out[i] += total;
    });
  });
}

// Gradients on a pattern from pairs of blocks of vectors of several iterations of a loop: several pairs are
// added in one pass over the entries.

// Some pairs of blocks of vectors, (u, v): out_p += <u_i, v_j> for the entries p = (i, j) of a pattern, one
// pair after another, so that no bit depends on how pairs are grouped. Entries are distributed, not rows, so
// the lengths of the rows do not matter. A column that does not act adds nothing, whatever it holds.
template <class T, class I>
struct EntryPairs {
  static constexpr int kMost = 8;
  const I* row;
  const I* idx;
  int64_t entries, k;
  Groups groups;
  BatchResult<T> out;
  Vectors<const T> acts;  // a number for each column, or none: all act
  Vectors<const T> u[kMost], v[kMost];
  int count;
};

template <int Lanes, class T, class I>
LS_KERNEL(kThreads)
entry_pairs_kernel(LS_ARGUMENT EntryPairs<T, I> P) {
  for_members(P.groups, [&](const Members& members) {
    T* const out = P.out.of(members);
    for_items<Lanes>(P.entries, [&](const auto& team, int64_t p) {
      const int64_t i = P.row[p] * P.k, j = P.idx[p] * P.k;
      T total = out[p];
      for (int q = 0; q < P.count; ++q)
        for (int64_t b = members.b0; b < members.b1; ++b) {
          const T* u = P.u[q].of(b) + i;
          const T* v = P.v[q].of(b) + j;
          const T* acts = P.acts.of(b);
          T part = 0;
          for (int64_t c = team.lane; c < P.k; c += Lanes)
            if (!acts || acts[c] != T(0)) part += u[c] * v[c];
          total += team.sum(part);
        }
      if (team.first()) out[p] = total;
    });
  });
}

// The row of each entry.
template <class I>
LS_KERNEL(kThreads)
rows_of_entries_kernel(const I* ptr, int64_t rows, I* row) {
  for_items<32>(rows, [&](const auto& team, int64_t i) {
    for (int64_t p = ptr[i] + team.lane; p < ptr[i + 1]; p += 32) row[p] = static_cast<I>(i);
  });
}

}  // namespace learnsolve::cuda
