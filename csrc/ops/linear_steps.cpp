// Linear functions of a block of columns, written down as steps over registers, in one call. A
// cycle of multigrid on 225 unknowns is some twenty steps of a microsecond; each of them as an operation of
// autograd takes twenty.
#include "ops/host.h"

namespace learnsolve {

// What register `out` becomes, from registers x and y and the operand A, a matrix, s, a number a row, or D, a
// dense matrix; with `transpose` A^T or D^T. learnsolve/ops/linear_steps.py has the same numbers.
enum StepKind : int64_t {
  kMultiply,  // A x
  kResidual,  // y - A x
  kAdd,       // y + x
  kSubtract,  // y - x
  kScale,     // s o x
  kScaleAdd,  // y + s o x
  kDense,     // D x
  kKinds
};

struct Step {
  int64_t kind, operand;
  bool transpose;
  int64_t x, y;
  bool reads_y() const { return kind == kResidual || kind == kAdd || kind == kSubtract || kind == kScaleAdd; }
  bool has_operand() const { return kind != kAdd && kind != kSubtract; }
  bool has_matrix() const { return kind == kMultiply || kind == kResidual; }
};
inline constexpr size_t kNumbers = 5;  // of a step

// f(i0, i1) over the rows of a block of k columns.
template <class F>
void parallel_rows(int64_t n, int64_t k, const F& f) {
  const int64_t grain = std::max<int64_t>(kGrain / std::max<int64_t>(k, 1), 1);
  if (n < 2 * grain) return f(int64_t(0), n);
  parallel_for(0, n, grain, f);
}

// y = a + sign x; y may be a.
template <class T>
void combine(const Tensor& a, const Tensor& x, T sign, Tensor& y) {
  const T *from = data<T>(a), *more = data<T>(x);
  T* to = mutable_data<T>(y);
  parallel_rows(y.numel(), 1, [=](int64_t i0, int64_t i1) {
    for (int64_t i = i0; i < i1; ++i) to[i] = from[i] + sign * more[i];
  });
}

// y = a + s o x, without a: s o x; y may be a.
template <class T>
void scale(const Tensor* a, const Tensor& s, const Tensor& x, Tensor& y) {
  const int64_t k = x.size(1);
  const T *from = a ? data<T>(*a) : nullptr, *rows = data<T>(s), *more = data<T>(x);
  T* to = mutable_data<T>(y);
  parallel_rows(x.size(0), k, [=](int64_t i0, int64_t i1) {
    for (int64_t i = i0; i < i1; ++i)
      for (int64_t o = i * k; o < (i + 1) * k; ++o) to[o] = (from ? from[o] : T(0)) + rows[i] * more[o];
  });
}

inline Tensor transposed(const Tensor& D) { return torch::stable::transpose(D, 0, 1); }

struct Steps {
  const char* name;
  std::vector<Structure> structures;  // of matrix m and of its transpose, at 2 m and 2 m + 1
  std::vector<Tensor> operands;       // the values of the matrices come first
  std::vector<Step> steps;
  std::vector<int64_t> rows;  // of each register: that of b, then one for each step
  std::vector<size_t> last;   // the last step that reads it
  int64_t k;

  Steps(const char* name_, const std::vector<Tensor>& S, const std::vector<Tensor>& operands_,
        const Tensor& b, const std::vector<int64_t>& numbers)
      : name(name_) {
    STD_TORCH_CHECK(b.dim() == 2, name, ": b must be (n, k), got ", b.dim(), " dimensions");
    STD_TORCH_CHECK(S.size() % 8 == 0 && S.size() / 8 <= operands_.size(), name,
                    ": structures must hold 8 tensors for each matrix, got ", S.size(), " for ",
                    operands_.size(), " operands");
    STD_TORCH_CHECK(!numbers.empty() && numbers.size() % kNumbers == 0, name, ": steps must hold ", kNumbers,
                    " numbers for each step, at least one, got ", numbers.size());
    for (size_t at = 0; at < S.size(); at += 4)
      structures.emplace_back(name, S[at], S[at + 1], S[at + 2], S[at + 3]);
    for (size_t m = 0; 2 * m < structures.size(); ++m) {
      const Structure &A = structures[2 * m], &At = structures[2 * m + 1];
      STD_TORCH_CHECK(A.nnz() == At.nnz() && A.idx.scalar_type() == At.idx.scalar_type(), name,
                      ": both structures must hold the same entries");
      STD_TORCH_CHECK(operands_[m].dim() == 1 && operands_[m].numel() == A.nnz(), name, ": operand ", m,
                      " must be (nnz) with nnz = ", A.nnz());
      A.check_columns(At.rows()), At.check_columns(A.rows());
    }
    for (const Tensor& t : operands_) {
      check_device(name, b, {&t});
      STD_TORCH_CHECK(t.scalar_type() == b.scalar_type(), name, ": operands and b must have one dtype");
      // Inverses come with their columns in a row each: a product takes them as they are.
      operands.push_back(t.dim() == 2 && t.size(1) > 1 ? t : dense(t));
    }
    k = b.size(1);
    rows.push_back(b.size(0));
    last.push_back(0);
    for (size_t at = 0; at < numbers.size(); at += kNumbers) {
      steps.push_back({numbers[at], numbers[at + 1], numbers[at + 2] != 0, numbers[at + 3], numbers[at + 4]});
      rows.push_back(checked(steps.back()));
      last.push_back(steps.size());
      last[steps.back().x] = steps.size();
      if (steps.back().reads_y()) last[steps.back().y] = steps.size();
    }
  }

  const Structure& structure(const Step& s, bool transpose) const {
    return structures[2 * s.operand + (transpose ? 1 : 0)];
  }

  // y = S x, or y += S x, S as `transpose` says.
  void multiply(const Step& s, bool transpose, const Tensor& x, Tensor& y, bool accumulate) const {
    const Structure& S = structure(s, transpose);
    dispatch(name, x, S.idx, [&]<class T, class I>() {
      const CsrView<T, I> A = S.view<T, I>(data<T>(operands[s.operand]));
      parallel_blocks<I>(S, k, [&](int64_t b0, int64_t b1) {
        kernels().get<T, I>().spmm(A, S.row_blocks<I>(), b0, b1, data<T>(x), k, mutable_data<T>(y),
                                   accumulate);
      });
    });
  }

  Tensor dense_product(const Step& s, bool transpose, const Tensor& x) const {
    const Tensor& D = operands[s.operand];
    return dense(torch::stable::matmul(transpose ? transposed(D) : D, x));
  }

 private:
  // Rows of the result.
  int64_t checked(const Step& s) const {
    const auto known = static_cast<int64_t>(rows.size());
    const auto bad = [&](const char* what) {
      STD_TORCH_CHECK(false, name, ": step ", known - 1, " ", what);
      return int64_t(0);
    };
    if (s.kind < 0 || s.kind >= kKinds) return bad("has an unknown kind");
    if (s.x < 0 || s.x >= known || (s.reads_y() && (s.y < 0 || s.y >= known)))
      return bad("reads a register that no earlier step has written");
    int64_t out = rows[s.x];
    if (s.has_operand()) {
      const auto matrices = static_cast<int64_t>(structures.size() / 2);
      if (s.operand < 0 || s.operand >= static_cast<int64_t>(operands.size()) ||
          s.has_matrix() != (s.operand < matrices))
        return bad("has no operand of its kind");
      const Tensor& operand = operands[s.operand];
      if (s.has_matrix()) {
        if (rows[s.x] != structure(s, !s.transpose).rows())
          return bad("multiplies a register of another size");
        out = structure(s, s.transpose).rows();
      } else if (s.kind == kDense) {
        if (operand.dim() != 2 || operand.size(s.transpose ? 0 : 1) != rows[s.x])
          return bad("multiplies a register of another size");
        out = operand.size(s.transpose ? 1 : 0);
      } else if (operand.numel() != rows[s.x]) {
        return bad("scales a register of another size");
      }
    }
    if (s.reads_y() && rows[s.y] != out) return bad("combines registers of different sizes");
    return out;
  }
};

std::vector<Tensor> linear_steps(const std::vector<Tensor>& structures, const std::vector<Tensor>& operands,
                                 const Tensor& b, const std::vector<int64_t>& numbers, bool keep) {
  const Steps p("linear_steps", structures, operands, b, numbers);
  std::vector<std::optional<Tensor>> registers{dense(b)};
  dispatch_dtype(p.name, b, [&]<class T>() {
    for (size_t i = 0; i < p.steps.size(); ++i) {
      const Step& s = p.steps[i];
      const Tensor& x = *registers[s.x];
      const Tensor* y = s.reads_y() ? &*registers[s.y] : nullptr;
      if (s.kind == kDense) {
        registers.emplace_back(p.dense_product(s, s.transpose, x));
      } else {
        Tensor out = new_empty(b, Size{p.rows[i + 1], p.k});
        if (s.has_matrix()) p.multiply(s, s.transpose, x, out, false);
        if (s.kind == kResidual) combine<T>(*y, out, T(-1), out);
        if (s.kind == kAdd || s.kind == kSubtract) combine<T>(*y, x, s.kind == kAdd ? T(1) : T(-1), out);
        if (s.kind == kScale || s.kind == kScaleAdd) scale<T>(y, p.operands[s.operand], x, out);
        registers.emplace_back(std::move(out));
      }
      if (keep) continue;
      for (const int64_t read : {s.x, s.reads_y() ? s.y : s.x})
        if (p.last[read] == i + 1) registers[read].reset();
    }
  });
  std::vector<Tensor> out;
  for (size_t r = keep ? 1 : p.steps.size(); r <= p.steps.size(); ++r) out.push_back(*registers[r]);
  return out;
}

// The adjoint of a list of steps: the steps the other way round, over cotangents of the registers.

namespace {

// sum_i += <u_i, v_i> over the columns
template <class T>
void add_row_dots(const Tensor& u, const Tensor& v, Tensor& sum) {
  const int64_t k = u.size(1);
  const T *left = data<T>(u), *right = data<T>(v);
  T* to = mutable_data<T>(sum);
  parallel_rows(u.size(0), k, [=](int64_t i0, int64_t i1) {
    for (int64_t i = i0; i < i1; ++i) {
      T total = 0;
      for (int64_t o = i * k; o < (i + 1) * k; ++o) total += left[o] * right[o];
      to[i] += total;
    }
  });
}

// A cotangent under construction: none yet, one that others hold too, or one of its own.
struct Cotangent {
  std::optional<Tensor> t;
  bool own = false;

  template <class T>
  void add(const Tensor& more, T sign, bool fresh = false) {
    if (!t && sign > 0) {
      t = more, own = fresh;
      return;
    }
    if (!t) t = new_zeros(more, sizes_of(more)), own = true;
    Tensor sum = own ? *t : new_empty(*t, sizes_of(*t));
    combine<T>(*t, more, sign, sum);
    t = sum, own = true;
  }

  // f(t, add): where f writes, or adds if there is something; to a copy if others hold it too.
  template <class F>
  void accumulate(const Tensor& like, const F& f) {
    const bool first = !t;
    if (!own) {
      Tensor room = new_empty(like, sizes_of(like));
      if (t) std::memcpy(room.data_ptr(), t->data_ptr(), bytes_of(*t));
      t = room, own = true;
    }
    f(*t, !first);
  }
};

}  // namespace

std::vector<Tensor> linear_steps_backward(const std::vector<Tensor>& structures,
                                          const std::vector<Tensor>& operands,
                                          const std::vector<Tensor>& registers_, const Tensor& g_,
                                          const std::vector<int64_t>& numbers,
                                          const std::vector<bool>& needs) {
  const char* name = "linear_steps_backward";
  STD_TORCH_CHECK(!registers_.empty(), name, ": registers must begin with b");
  const Steps p(name, structures, operands, registers_[0], numbers);
  STD_TORCH_CHECK(registers_.size() >= p.steps.size(), name, ": registers must be those of the forward, got ",
                  registers_.size(), " for ", p.steps.size(), " steps");
  STD_TORCH_CHECK(needs.size() == operands.size() + 1, name,
                  ": needs must be one for b and each operand, got ", needs.size());
  std::vector<Tensor> registers;
  for (size_t r = 0; r < p.steps.size(); ++r) {
    const Tensor& t = registers_[r];
    STD_TORCH_CHECK(
        t.dim() == 2 && t.size(0) == p.rows[r] && t.size(1) == p.k && t.scalar_type() == g_.scalar_type(),
        name, ": register ", r, " must be that of the forward");
    check_device(name, g_, {&t});
    registers.push_back(dense(t));
  }
  STD_TORCH_CHECK(g_.dim() == 2 && g_.size(0) == p.rows.back() && g_.size(1) == p.k, name,
                  ": g must have the shape of the result");
  const Tensor g = dense(g_);
  // Does a register depend on anything whose gradient is asked for?
  std::vector<bool> depends{needs[0]};
  for (const Step& s : p.steps)
    depends.push_back(depends[s.x] || (s.reads_y() && depends[s.y]) ||
                      (s.has_operand() && needs[s.operand + 1]));
  std::vector<Tensor> out;
  for (size_t i = 0; i < needs.size(); ++i) {
    const Tensor& like = i ? p.operands[i - 1] : registers[0];
    out.push_back(needs[i] && i ? new_zeros(like, sizes_of(like)) : new_empty(like, Size{0}));
  }
  dispatch_dtype(name, g, [&]<class T>() {
    std::vector<Cotangent> cotangents(p.rows.size());
    cotangents.back().t = g;
    // Of each matrix, what the gradient on its pattern is added up from, at the end.
    std::vector<std::vector<std::pair<Tensor, Tensor>>> pairs(p.structures.size() / 2);
    for (size_t i = p.steps.size(); i-- > 0;) {
      const Step& s = p.steps[i];
      if (!depends[i + 1] || !cotangents[i + 1].t) continue;
      const Tensor& x = registers[s.x];
      Cotangent& to = cotangents[s.x];
      Cotangent of = std::move(cotangents[i + 1]);
      if (s.reads_y() && depends[s.y]) cotangents[s.y].add<T>(*of.t, T(1));
      const bool wanted = s.has_operand() && needs[s.operand + 1];
      if (s.kind == kAdd || s.kind == kSubtract) {
        if (depends[s.x]) to.add<T>(*of.t, s.kind == kAdd ? T(1) : T(-1));
      } else if (s.kind == kScale || s.kind == kScaleAdd) {
        if (wanted) add_row_dots<T>(*of.t, x, out[s.operand + 1]);
        if (depends[s.x])
          to.accumulate(x, [&](Tensor& sum, bool add) {
            scale<T>(add ? &sum : nullptr, p.operands[s.operand], *of.t, sum);
          });
      } else if (s.kind == kDense) {
        if (wanted) {
          const Tensor &left = s.transpose ? x : *of.t, &right = s.transpose ? *of.t : x;
          const Tensor more = dense(torch::stable::matmul(left, transposed(right)));
          combine<T>(out[s.operand + 1], more, T(1), out[s.operand + 1]);
        }
        if (depends[s.x]) to.add<T>(p.dense_product(s, !s.transpose, *of.t), T(1), true);
      } else {
        Cotangent h;  // of A x
        h.add<T>(*of.t, s.kind == kResidual ? T(-1) : T(1));
        if (wanted) pairs[s.operand].emplace_back(s.transpose ? x : *h.t, s.transpose ? *h.t : x);
        if (depends[s.x])
          to.accumulate(x, [&](Tensor& sum, bool add) { p.multiply(s, !s.transpose, *h.t, sum, add); });
      }
    }
    for (size_t m = 0; m < pairs.size(); ++m) {
      const Structure& A = p.structures[2 * m];
      dispatch(name, g, A.idx, [&]<class U, class I>() {
        Pairs<U, I> sum{A, p.k, mutable_data<U>(out[m + 1]), {}, {}};
        for (const auto& [u, v] : pairs[m]) sum.add(data<U>(u), data<U>(v));
        sum.flush();
      });
    }
    if (!needs[0]) return;
    if (!cotangents[0].t)
      out[0] = new_zeros(registers[0], sizes_of(registers[0]));
    else
      cotangents[0].accumulate(registers[0], [&](Tensor& sum, bool) { out[0] = sum; });
  });
  return out;
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) {
  m.impl("linear_steps", TORCH_BOX(&learnsolve::linear_steps));
  m.impl("linear_steps_backward", TORCH_BOX(&learnsolve::linear_steps_backward));
}
