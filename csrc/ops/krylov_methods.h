// One iteration of minres, bicgstab and gmres, as learnsolve/solvers/krylov.py has them and in their
// notation, for one column. `step` is false, and the state as before, where the column breaks down, is no
// longer finite, or is in doubt: Python then takes the step, and decides.
#pragma once

#include "ops/krylov.h"

namespace learnsolve {

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

// A method in short recurrences: vectors and scalars of its state, and vectors of a step.
template <class T, class I, int64_t kVectors, int64_t kMore, int64_t kScalars>
class Recurrence {
 public:
  Recurrence(Passes<T, I>& on_, const std::vector<Tensor>& vectors, const std::vector<Tensor>& scalars)
      : on(on_), room(kVectors + kMore, on_.n) {
    copied(vectors, 0, vectors.size(), room[0]);
    copied(scalars, 0, scalars.size(), q);
    for (int64_t i = 0; i < kVectors + kMore; ++i) at[i] = room[i];
  }
  int64_t finish(T* vectors, T* scalars) {
    for (int64_t i = 0; i < kVectors; ++i) std::copy_n(at[i], on.n, vectors + i * on.n);
    std::copy_n(q, kScalars, scalars);
    return 0;
  }

 protected:
  Passes<T, I>& on;
  Room<T> room;
  T q[kScalars];
  T* at[kVectors + kMore];
};

template <class T, class I>
class Minres : public Recurrence<T, I, 9, 8, 10> {
 public:
  Minres(Passes<T, I>& on_, const T* b_, const std::vector<Tensor>& vectors,
         const std::vector<Tensor>& scalars)
      : Recurrence<T, I, 9, 8, 10>(on_, vectors, scalars), b(b_) {}

  bool step(T& norm) {
    const T eps = 10 * std::numeric_limits<T>::epsilon();
    const T gamma_old = q[0], gamma = q[1], c_old = q[2], c = q[3], s_old = q[4], s = q[5], eta = q[6];
    if (!(gamma > T(0))) return false;
    T zz, found[2];
    on.combine(unit, {{T(1) / gamma, z}}, {unit}, &zz);
    on.multiply(unit, Az);
    on.dots(Az, {unit, Az}, found);
    const T delta = found[0], length_Az = root(found[1]);
    on.combine(v_new, {{T(1), Az}, {-delta / gamma, v}, {-ratio(gamma, gamma_old), v_old}});
    const T* next = on.precondition(v_new, z_new);
    if (next == v_new) std::copy_n(v_new, on.n, z_new);
    const T square = on.dot(v_new, z_new);
    if (square < T(0)) return false;  // is M indefinite?
    T gamma_new = root(square);
    const T largest = std::max({q[7], std::abs(delta), gamma_new});
    if (gamma_new <= eps * largest) gamma_new = 0;
    const T a0 = c * delta - c_old * s * gamma, a1 = root(a0 * a0 + gamma_new * gamma_new),
            a2 = s * delta + c_old * c * gamma, a3 = s_old * gamma;
    if (!(a1 > T(0)) || root(a0 * a0 + c * gamma_new * (c * gamma_new)) <= eps * largest) return false;
    const T c_new = a0 / a1, s_new = gamma_new / a1, length = c_new * eta;
    on.combine(w_new, {{T(1) / a1, unit}, {-a3 / a1, w_older}, {-a2 / a1, w_old}});
    on.combine(Aw_new, {{T(1) / a1, Az}, {-a3 / a1, Aw_older}, {-a2 / a1, Aw_old}});
    T xx, rr;
    on.combine(x_new, {{T(1), x}, {length, w_new}}, {x_new}, &xx);
    on.combine(r_new, {{T(1), r}, {-length, Aw_new}}, {r_new}, &rr);
    norm = root(rr);
    const T norm_A = std::max(q[8], ratio(length_Az, root(zz)));
    if (!std::isfinite(norm) || !std::isfinite(xx)) return false;
    if (10 * eps * norm_A * root(xx) > norm) {  // as `doubts` and `mended`
      T true_rr;
      on.multiply(x_new, Az);
      on.combine(unit, {{T(1), b}, {T(-1), Az}}, {unit}, &true_rr);
      if (!(root(true_rr) <= T(1.1) * root(on.dot(r, r)))) return false;
    }
    std::swap(x, x_new), std::swap(r, r_new), std::swap(z, z_new);
    std::swap(v_old, v), std::swap(v, v_new);
    std::swap(w_older, w_old), std::swap(w_old, w_new);
    std::swap(Aw_older, Aw_old), std::swap(Aw_old, Aw_new);
    const T now[] = {gamma, gamma_new, c, c_new, s, s_new, -s_new * eta, largest, norm_A};
    std::copy_n(now, 9, q);
    return true;
  }

 private:
  using Recurrence<T, I, 9, 8, 10>::on;
  using Recurrence<T, I, 9, 8, 10>::q;
  using Recurrence<T, I, 9, 8, 10>::at;
  const T* b;
  T *&x = at[0], *&r = at[1], *&v_old = at[2], *&v = at[3], *&z = at[4], *&w_older = at[5], *&w_old = at[6],
    *&Aw_older = at[7], *&Aw_old = at[8];
  T *&x_new = at[9], *&r_new = at[10], *&v_new = at[11], *&z_new = at[12], *&w_new = at[13],
    *&Aw_new = at[14], *&unit = at[15], *&Az = at[16];
};

template <class T, class I>
class Bicgstab : public Recurrence<T, I, 5, 8, 3> {
 public:
  using Recurrence<T, I, 5, 8, 3>::Recurrence;

  bool step(T& norm) {
    T of_r[2], of_v[2], of_t[2];
    on.dots(r, {shadow, r}, of_r);
    T rho = of_r[0];
    const T length = on.dot(shadow, shadow);
    const bool again = zero(rho, length, of_r[1]) || q[1] == T(0) || q[2] == T(0);
    if (again) rho = of_r[1];
    const T* of = again ? r : shadow;
    const T beta = again ? T(0) : ratio(rho, q[0]) * ratio(q[1], q[2]);
    on.combine(p_new, {{T(1), r}, {beta, p}, {-beta * q[2], v}});
    const T* Mp = on.precondition(p_new, z);
    on.multiply(Mp, v_new);
    on.dots(v_new, {of, v_new}, of_v);
    const T alpha = zero(of_v[0], again ? of_r[1] : length, of_v[1]) ? T(0) : ratio(rho, of_v[0]);
    T ss, xx, rr;
    on.combine(s, {{T(1), r}, {-alpha, v_new}}, {s}, &ss);
    const T* Ms = on.precondition(s, y);
    on.multiply(Ms, t);
    on.dots(t, {s, t}, of_t);
    const T omega = zero(of_t[0], of_t[1], ss) ? T(0) : ratio(of_t[0], of_t[1]);
    if (again && alpha == T(0) && omega == T(0)) return false;
    on.combine(x_new, {{T(1), x}, {alpha, Mp}, {omega, Ms}}, {x_new}, &xx);
    on.combine(r_new, {{T(1), s}, {-omega, t}}, {r_new}, &rr);
    norm = root(rr);
    if (!std::isfinite(norm) || !std::isfinite(xx)) return false;
    if (again) std::copy_n(r, on.n, shadow);
    std::swap(x, x_new), std::swap(r, r_new), std::swap(p, p_new), std::swap(v, v_new);
    q[0] = rho, q[1] = alpha, q[2] = omega;
    return true;
  }

 private:
  using Recurrence<T, I, 5, 8, 3>::on;
  using Recurrence<T, I, 5, 8, 3>::q;  // rho, alpha, omega
  using Recurrence<T, I, 5, 8, 3>::at;
  T *&x = at[0], *&r = at[1], *&shadow = at[2], *&p = at[3], *&v = at[4];
  T *&x_new = at[5], *&r_new = at[6], *&p_new = at[7], *&v_new = at[8], *&s = at[9], *&t = at[10],
    *&z = at[11], *&y = at[12];

  // Are u and v, of these squares, orthogonal to rounding?
  static bool zero(T product, T uu, T vv) {
    return std::abs(product) <= std::numeric_limits<T>::epsilon() * std::sqrt(uu) * std::sqrt(vv);
  }
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

}  // namespace learnsolve
