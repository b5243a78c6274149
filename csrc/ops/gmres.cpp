// What the compiled steps of gmres are made of: products with A and M,
// and one pass over vectors, out = sum_t a_t v_t with the dots of out and other vectors. Sums are of chunks
// of rows, whose number depends on n alone, added up in order, in double: the same bits for any number of
// threads.
#include <cmath>
#include <limits>
#include <tuple>

#include "ops/host.h"
#include "ops/solves.h"

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

// One iteration of gmres, as learnsolve/solvers/krylov.py has it and in its notation, for one column. `step`
// is false, and the state as before, where the column breaks down, is no longer finite, or is in doubt:
// Python then takes the step, and decides.

// The numbers of tensors, one after another.
template <class T>
T* copied(const std::vector<Tensor>& tensors, size_t first, size_t last, T* to) {
  for (size_t i = first; i < last; ++i) to = std::copy_n(data<T>(tensors[i]), tensors[i].numel(), to);
  return to;
}

// Vectors in one piece of memory.
template <class T>
struct Room {
  std::vector<T> memory;
  int64_t n;
  Room(int64_t count, int64_t n_) : memory(count * n_), n(n_) {}
  T* operator[](int64_t i) { return memory.data() + i * n; }
};

// Vectors x, r, V (j + 1) and P (j), or x and r alone, to start from x; scalars eta, largest, c (j) and s
// (j). x, r and P are not computed before they are needed, for many columns of P in one pass; ||r|| is |eta|.
// With M of the last of V as one more vector for one iteration, and of V and P only what is new is returned.
template <class T, class I>
class Gmres {
 public:
  Gmres(Passes<T, I>& on_, const T* b_, int64_t restart_, int64_t j_, int64_t capacity_,
        const std::vector<Tensor>& vectors, const std::vector<Tensor>& scalars, T* out)
      : on(on_),
        b(b_),
        restart(restart_),
        capacity(capacity_),
        starts(vectors.size() == 2),
        given(vectors.size() == 5 ? data<T>(vectors[4]) : nullptr),
        j(j_),
        known(j_),
        x(out),
        r(out + on_.n),
        V(given ? held(vectors[2], j + 1, out + 2 * on_.n) : Basis{nullptr, 0, out + 2 * on_.n}),
        P(given ? held(vectors[3], j, out + 3 * on_.n) : Basis{nullptr, 0, out + (3 + capacity_) * on_.n}),
        largest(*data<T>(scalars[1])),
        room(2, on_.n),
        c(capacity_),
        s(capacity_),
        eta(capacity_ + 1),
        h(capacity_ + 1),
        more(capacity_ + 2) {
    copied(vectors, 0, starts || given ? 2 : 3, out);
    eta[j] = *data<T>(scalars[0]);
    if (starts) return;
    if (!given) copied(vectors, 3, 4, P.more);
    copied(scalars, 2, 3, c.data());
    copied(scalars, 3, 4, s.data());
  }

  bool step(T& norm) {
    T *w = room[0], square;
    if (starts || j == restart) {
      if (!update()) return false;
      on.multiply(x, w);
      on.combine(r, {{T(1), b}, {T(-1), w}}, {r}, &square);
      eta[0] = root(square), largest = 0, j = known = 0, starts = false;
      on.combine(added(V, 0), {{ratio(T(1), eta[0]), r}});
    }
    on.multiply(given ? given : on.precondition(column(V, j), room[1]), w);
    with.clear(), terms.assign({{T(1), w}});
    for (int64_t i = 0; i <= j; ++i) with.push_back(column(V, i)), terms.push_back({T(0), column(V, i)});
    with.push_back(w);
    on.dots(w, with, more.data());
    const T top = std::max(largest, root(more[j + 1]));
    with.pop_back();
    for (int64_t i = 0; i <= j; ++i) h[i] = more[i], terms[i + 1].a = -h[i];
    on.combine(w, terms, with, more.data());
    for (int64_t i = 0; i <= j; ++i) h[i] += more[i], terms[i + 1].a = -more[i];
    on.combine(w, terms, {w}, &square);
    const T noise = 10 * std::numeric_limits<T>::epsilon() * top;
    T below = root(square);
    if (below <= noise) below = 0;
    for (int64_t i = 0; i < j; ++i) {
      const T up = h[i], down = h[i + 1];
      h[i] = c[i] * up + s[i] * down, h[i + 1] = c[i] * down - s[i] * up;
    }
    const T diagonal = root(h[j] * h[j] + below * below);
    if (!(diagonal > noise)) return false;
    c[j] = h[j] / diagonal, s[j] = below / diagonal;
    eta[j + 1] = -s[j] * eta[j];
    norm = std::abs(eta[j + 1]);
    if (!std::isfinite(norm)) return false;
    h[j] = diagonal;
    R.emplace_back(h.data(), h.data() + j + 1);
    on.combine(added(V, j + 1), {{ratio(T(1), below), w}});
    largest = top, ++j;
    return true;
  }
  // -1 if x is not finite: Python finds out where.
  int64_t finish(T* vectors, T* scalars) {
    if (!update()) return -1;
    if (!given) {
      std::fill(added(V, starts ? 0 : j + 1), P.more, T(0));
      std::fill(added(P, j), vectors + (3 + 2 * capacity) * on.n, T(0));
    }
    std::fill_n(scalars, 2 + 2 * capacity, T(0));
    scalars[0] = eta[j], scalars[1] = largest;
    std::copy_n(c.data(), j, scalars + 2);
    std::copy_n(s.data(), j, scalars + 2 + capacity);
    return j;
  }

 private:
  Passes<T, I>& on;
  const T* b;
  const int64_t restart, capacity;
  bool starts;
  const T* given;
  int64_t j, known;  // columns of P, and those that are computed
  T *x, *r;
  struct Basis {
    const T* from;
    int64_t count;  // as many are there, the others are in `more`
    T* more;
  } V, P;
  T largest;
  Room<T> room;
  std::vector<T> c, s, eta, h, more;
  std::vector<std::vector<T>> R;  // its columns from known to j
  std::vector<const T*> with;
  std::vector<Term<T>> terms;

  static Basis held(const Tensor& from, int64_t count, T* more) { return {data<T>(from), count, more}; }
  const T* column(const Basis& B, int64_t i) const { return i < B.count ? B.from + i * on.n : added(B, i); }
  T* added(const Basis& B, int64_t i) const { return B.more + (i - B.count) * on.n; }

  const T* part(int64_t i, T* z, int64_t at, int64_t length) const {
    return given ? given : on.precondition_part(column(V, i), z, at, length);
  }

  // P = (M V) R^-1, x = x + sum_i c_i eta_i p_i, r_i+1 = s_i^2 r_i + c_i eta_i+1 v_i+1 from i = known to j.
  // Is x finite?
  bool update() {
    T xx, rest = 1, *z = room[1], *w = room[0];
    std::vector<std::vector<Term<T>>> of_P;
    std::vector<Term<T>> of_x{{T(1), x}}, of_r;
    for (int64_t i = known; i < j; ++i) {
      const std::vector<T>& row = R[i - known];
      of_P.push_back({{T(1) / row[i], part(i, z, 0, 0)}});
      for (int64_t l = 0; l < i; ++l) of_P.back().push_back({-row[l] / row[i], column(P, l)});
      of_x.push_back({c[i] * eta[i], column(P, i)});
    }
    for (int64_t i = j; i-- > known; rest *= s[i] * s[i])
      of_r.push_back({rest * c[i] * eta[i + 1], column(V, i + 1)});
    of_r.push_back({rest, r});
    on.run(x, {x}, &xx, (j + 3) * (j - known + 1), [&](int64_t at, int64_t length) {
      for (int64_t i = known; i < j; ++i) {
        part(i, z, at, length);
        on.combine_part(added(P, i), of_P[i - known], at, length);
      }
      on.combine_part(x, of_x, at, length);
      on.combine_part(w, of_r, at, length);
      std::copy_n(w + at, length, r + at);
    });
    known = j, R.clear();
    return std::isfinite(xx);
  }
};

// Iterations for one column, until it seems done or Python has to decide.

namespace {

template <class T, class I>
int64_t iterate(Gmres<T, I>& method, double level, double limit, int64_t iterations, T* norms, int64_t& ran,
                T* vectors, T* scalars) {
  for (ran = 0; ran < iterations;) {
    T norm;
    if (!method.step(norm)) break;
    norms[ran++] = norm;
    if (norm <= level || norm > limit) break;
  }
  std::fill(norms + ran, norms + iterations, T(0));
  return method.finish(vectors, scalars);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> csr_gmres(const std::vector<Tensor>& A, const Tensor& values_,
                                                     const std::optional<Tensor>& diagonal_, const Tensor& b_,
                                                     const std::vector<Tensor>& vectors_,
                                                     const std::vector<Tensor>& scalars_, double level,
                                                     double limit, int64_t iterations, int64_t restart) {
  const char* name = "csr_gmres";
  const Structure S(name, A);
  const int64_t n = S.rows();
  const Tensor values = dense(values_), b = dense(b_);
  const std::optional<Tensor> diagonal = dense(diagonal_);
  check_device(name, values, {&S.idx, &b, diagonal ? &*diagonal : &b});
  const auto of_kind = [&](const std::vector<Tensor>& list, int64_t& numbers) {
    std::vector<Tensor> found;
    for (const Tensor& t : list) {
      found.push_back(dense(t));
      check_device(name, values, {&found.back()});
      STD_TORCH_CHECK(t.scalar_type() == values.scalar_type(), name, ": all numbers must have one dtype");
      numbers += t.numel();
    }
    return found;
  };
  int64_t of_vectors = 0, of_scalars = 0, of_b = 0;
  of_kind({b, diagonal ? *diagonal : b}, of_b);
  const std::vector<Tensor> vectors = of_kind(vectors_, of_vectors), scalars = of_kind(scalars_, of_scalars);
  STD_TORCH_CHECK(values.dim() == 1 && values.size(0) == S.nnz(), name, ": values must be (", S.nnz(), ")");
  STD_TORCH_CHECK(b.numel() == n && of_b == 2 * n, name, ": b and a diagonal must be (", n, ")");
  STD_TORCH_CHECK(iterations >= 0 && iterations <= (int64_t{1} << 31), name,
                  ": iterations must be 0 ... 2^31, got ", iterations);
  const bool starts = vectors.size() == 2, given = vectors.size() == 5;
  const int64_t j = !starts && scalars.size() == 4 ? scalars[2].numel() : 0;
  STD_TORCH_CHECK(of_vectors == (starts ? 2 : 3 + 2 * j + given) * n && of_scalars == 2 + 2 * j &&
                      (starts || (vectors.size() == 4u + given && vectors[3].numel() == j * n)),
                  name, ": the state is not that of the method");
  STD_TORCH_CHECK(restart >= 1 && j <= restart, name, ": restart must be at least ", j, " and 1, got ",
                  restart);
  STD_TORCH_CHECK(!given || (vectors[4].numel() == n && iterations <= 1 && j < restart), name,
                  ": M of a vector is for one iteration that is not a restart");
  S.check_columns(n);
  const int64_t capacity = std::min(restart, j + iterations), rows = given ? 4 : 3 + 2 * capacity,
                numbers = 2 + 2 * capacity;
  Tensor next = new_empty(b, Size{rows, n}), known = new_empty(b, Size{numbers}),
         norms = new_empty(b, Size{iterations}), counts = new_empty(b, Size{2}, aoti_torch_dtype_int64());
  dispatch(name, values, S.idx, [&]<class T, class I>() {
    Passes<T, I> on(S, data<T>(values), data<T>(diagonal));
    T *to = mutable_data<T>(next), *numbers_out = mutable_data<T>(known);
    int64_t* count = mutable_data<int64_t>(counts);
    Gmres<T, I> steps(on, data<T>(b), restart, j, capacity, vectors, scalars, to);
    count[1] = iterate(steps, level, limit, iterations, mutable_data<T>(norms), count[0], to, numbers_out);
    if (count[1] < 0) count[0] = count[1] = 0;
  });
  return {next, known, norms, counts};
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) { m.impl("csr_gmres", TORCH_BOX(&learnsolve::csr_gmres)); }
