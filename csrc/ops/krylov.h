// What the compiled steps of minres, bicgstab and gmres are made of (ops/krylov.cpp): products with A and M,
// and one pass over vectors, out = sum_t a_t v_t with the dots of out and other vectors. Sums are of chunks
// of rows, whose number depends on n alone, added up in order, in double: the same bits for any number of
// threads.
#pragma once

#include <cmath>
#include <limits>

#include "ops/check.h"
#include "ops/pcg.h"

namespace learnsolve {

template <class T>
struct Term {
  T a;
  const T* v;
};

template <class T, class I>
class Passes {
 public:
  const int64_t n;

  Passes(const Structure& S_, const T* values, const T* diagonal_)
      : n(S_.rows()), S(S_), diagonal(diagonal_), A(S_.template view<T, I>(values)) {
    if (!S.perm) return;
    own = transposed_values<T, I>(S, values);
    A = {data<I>(S.ptr), data<I>(S.idx), nullptr, own.data()};
  }

  void multiply(const T* x, T* y) const {
    parallel_blocks<I>(
        S, 1, [&](int64_t b0, int64_t b1) { table.spmm(A, S.row_blocks<I>(), b0, b1, x, 1, y, false); });
  }
  // M x, in `room` unless it is x.
  const T* precondition(const T* x, T* room) const {
    if (!diagonal) return x;
    scale(x, 0, n, room);
    return room;
  }
  // The first term may be out itself, with a = 1.
  void combine(T* out, const std::vector<Term<T>>& terms, const std::vector<const T*>& with = {},
               T* totals = nullptr) {
    run(out, with, totals, terms.size() + with.size(),
        [&](int64_t at, int64_t length) { combine_part(out, terms, at, length); });
  }
  void dots(const T* u, const std::vector<const T*>& with, T* totals) {
    run(u, with, totals, with.size(), [](int64_t, int64_t) {});
  }
  T dot(const T* u, const T* v) {
    T total;
    dots(u, {v}, &total);
    return total;
  }

  // The same of rows at ... at + length, for a `run` of one's own.
  const T* precondition_part(const T* x, T* room, int64_t at, int64_t length) const {
    if (!diagonal) return x;
    scale(x, at, length, room);
    return room;
  }
  void combine_part(T* out, const std::vector<Term<T>>& terms, int64_t at, int64_t length) const {
    for (size_t t = terms[0].v == out; t < terms.size(); ++t)
      table.column_combination(&terms[t].a, terms[t].v + at, length, 1, out + at, t > 0);
  }
  // f(at, length) for chunks of rows, each of which costs `passes` over them; after it the dots of u.
  template <class F>
  void run(const T* u, const std::vector<const T*>& with, T* totals, int64_t passes, const F& f) {
    const int64_t count = std::max<int64_t>((n + kChunk - 1) / kChunk, 1), s = with.size();
    T* parts = sums.room(count, s);
    const auto chunks = [&](int64_t c0, int64_t c1) {
      for (int64_t c = c0; c < c1; ++c) {
        const int64_t at = c * kChunk, length = std::min(kChunk, n - at);
        f(at, length);
        for (int64_t j = 0; j < s; ++j) table.column_dots(u + at, with[j] + at, length, 1, parts + c * s + j);
      }
    };
    if (n * passes < 2 * kGrain)
      chunks(0, count);
    else
      parallel_for(0, count, std::max<int64_t>(kGrain / (kChunk * passes), 1), chunks);
    for (int64_t j = 0; j < s; ++j) totals[j] = static_cast<T>(sums.total(count, s, j));
  }

 private:
  static constexpr int64_t kChunk = 1024;  // of all terms, they stay in the first cache
  const Structure& S;
  const T* diagonal;
  CsrView<T, I> A;
  std::vector<T> own;
  Sums<T> sums;
  const Kernels<T, I>& table = kernels().get<T, I>();

  void scale(const T* x, int64_t at, int64_t length, T* y) const {
    for (int64_t i = at; i < at + length; ++i) y[i] = diagonal[i] * x[i];
  }
};

// a / b, 0 where b is.
template <class T>
T ratio(T a, T b) {
  return b == T(0) ? T(0) : a / b;
}
// The root of what is positive, else 0; NaN stays NaN.
template <class T>
T root(T t) {
  return t <= T(0) ? T(0) : std::sqrt(t);
}

}  // namespace learnsolve
