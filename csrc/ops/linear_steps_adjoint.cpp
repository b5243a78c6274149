// The adjoint of a list of steps: the steps the other way round, over cotangents of the registers.
#include "ops/linear_steps.h"

namespace learnsolve {

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
  m.impl("linear_steps_backward", TORCH_BOX(&learnsolve::linear_steps_backward));
}
