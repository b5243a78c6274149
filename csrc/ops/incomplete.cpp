// Incomplete factorisation and the four maps that its derivatives are made of.
#include <algorithm>

#include "ops/check.h"

namespace learnsolve {

namespace {

// A plan, its arrays contiguous. It holds the tensors: pointers stay valid.
struct Plan {
  Tensor order, source, pivot, ptr, pairs, units;
  int64_t nnz;
  bool cholesky;

  Plan(const char* name, const Tensor& order_, const Tensor& source_, const Tensor& pivot_,
       const Tensor& ptr_, const Tensor& pairs_, const Tensor& units_, int64_t nnz_, bool cholesky_)
      : order(dense(order_)),
        source(dense(source_)),
        pivot(dense(pivot_)),
        ptr(dense(ptr_)),
        pairs(dense(pairs_)),
        units(dense(units_)),
        nnz(nnz_),
        cholesky(cholesky_) {
    for (const Tensor* t : {&source, &pivot, &ptr, &pairs, &units})
      STD_TORCH_CHECK(t->scalar_type() == order.scalar_type(), name, ": a plan must have one index type");
    STD_TORCH_CHECK(source.numel() == steps() && pivot.numel() == steps() && ptr.numel() == steps() + 1 &&
                        pairs.numel() == 2 * Structure::entry(ptr, steps()) && steps() <= nnz,
                    name, ": order, source, pivot, ptr and pairs do not fit one another");
  }
  int64_t steps() const { return order.numel(); }
  int64_t entries() const { return steps() + units.numel(); }
  template <class I>
  Elimination<I> view() const {
    return {steps(), data<I>(order), data<I>(source), data<I>(pivot), data<I>(ptr), data<I>(pairs), cholesky};
  }
  template <class T, class I>
  void set_units(T* f, T value) const {
    const I* at = data<I>(units);
    for (int64_t i = 0; i < units.numel(); ++i) f[at[i]] = value;
  }
};

// (size) or (B, size). One that is shared by the batch (expanded) is not copied.
struct Operand {
  Tensor tensor;
  int64_t batch, stride;
  bool batched;

  Operand(const char* name, const char* arg, const Tensor& t, int64_t size, const Tensor& like)
      : tensor(t), batched(t.dim() == 2) {
    STD_TORCH_CHECK((t.dim() == 1 || batched) && t.size(t.dim() - 1) == size, name, ": ", arg, " must be (",
                    size, ") or (B, ", size, ")");
    STD_TORCH_CHECK(t.scalar_type() == like.scalar_type(), name, ": operands must have one dtype");
    batch = batched ? t.size(0) : 1;
    const bool shared = batched && batch > 1 && t.stride(0) == 0 && t.stride(1) == 1;
    if (!shared) tensor = dense(t);
    stride = shared ? 0 : size;
  }
  template <class T>
  const T* at(int64_t b) const {
    return data<T>(tensor) + b * stride;
  }
  std::vector<int64_t> size(int64_t n) const {
    return batched ? std::vector<int64_t>{batch, n} : std::vector<int64_t>{n};
  }
};

void check_batches(const char* name, const Operand& a, const Operand& b) {
  STD_TORCH_CHECK(a.batched == b.batched && a.batch == b.batch, name, ": batches must be the same, got ",
                  a.batch, " and ", b.batch);
}

// One elimination is a chain; those of a batch go side by side.
template <class F>
void for_batch(const Plan& plan, int64_t batch, const F& f) {
  const int64_t work = plan.steps() + plan.pairs.numel() / 2;
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(work, 1));
  torch::stable::parallel_for(0, batch, grain, [&](int64_t b0, int64_t b1) {
    for (int64_t b = b0; b < b1; ++b) f(b);
  });
}

Tensor new_double(const std::vector<int64_t>& size) {
  std::vector<int64_t> strides(size.size(), 1);
  if (size.size() == 2) strides[0] = size[1];
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(size.size()), size.data(),
                                                  strides.data(), aoti_torch_dtype_float64(),
                                                  aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

int64_t row_of(const Tensor& crow, int64_t place) {
  int64_t lo = 0, hi = crow.numel() - 1;  // the last row that begins at or before `place`
  while (hi - lo > 1) {
    const int64_t mid = (lo + hi) / 2;
    Structure::entry(crow, mid) <= place ? lo = mid : hi = mid;
  }
  return lo;
}

}  // namespace

std::tuple<Tensor, Tensor> csr_incomplete_factor(const Tensor& order, const Tensor& source,
                                                 const Tensor& pivot, const Tensor& ptr, const Tensor& pairs,
                                                 const Tensor& units, bool cholesky,
                                                 const std::optional<Tensor>&, const std::optional<Tensor>&,
                                                 const std::optional<Tensor>&, const std::optional<Tensor>&,
                                                 const Tensor& crow_, const Tensor& values, bool check) {
  const char* name = "csr_incomplete_factor";
  const int64_t nnz = values.dim() > 0 ? values.size(values.dim() - 1) : 0;
  const Plan plan(name, order, source, pivot, ptr, pairs, units, nnz, cholesky);
  const Tensor crow = dense(crow_);
  STD_TORCH_CHECK(crow.numel() > 0 && Structure::entry(crow, crow.numel() - 1) == nnz, name,
                  ": crow must end with the number of values");
  const Operand a(name, "values", values, nnz, values);
  Tensor f = new_empty(values, a.size(plan.entries())), breakdown = new_double(a.size(2));
  double* failed = mutable_data<double>(breakdown);
  dispatch(name, values, plan.order, [&]<class T, class I>() {
    for_batch(plan, a.batch, [&](int64_t b) {
      T* fb = mutable_data<T>(f) + b * plan.entries();
      plan.set_units<T, I>(fb, T(1));
      const Elimination<I> E = plan.view<I>();
      const int64_t t = kernels().get<T, I>().incomplete_factor(E, a.at<T>(b), fb);
      failed[2 * b] = t < 0 ? -1 : static_cast<double>(row_of(crow, E.source[t]));
      failed[2 * b + 1] = t < 0 ? 0 : static_cast<double>(fb[E.order[t]]);
    });
  });
  for (int64_t b = 0; check && b < a.batch; ++b)
    STD_TORCH_CHECK(failed[2 * b] < 0, name, ": the pivot of row ", static_cast<int64_t>(failed[2 * b]),
                    a.batched ? " of matrix " + std::to_string(b) : std::string(), " is ", failed[2 * b + 1],
                    ", it must be ", cholesky ? "positive" : "nonzero", "; use a shift");
  return {f, breakdown};
}

Tensor csr_incomplete_tangent(const Tensor& order, const Tensor& source, const Tensor& pivot,
                              const Tensor& ptr, const Tensor& pairs, const Tensor& units, bool cholesky,
                              const std::optional<Tensor>&, const std::optional<Tensor>&,
                              const std::optional<Tensor>&, const std::optional<Tensor>&,
                              const Tensor& factor, const Tensor& v_) {
  const char* name = "csr_incomplete_tangent";
  const int64_t nnz = v_.dim() > 0 ? v_.size(v_.dim() - 1) : 0;
  const Plan plan(name, order, source, pivot, ptr, pairs, units, nnz, cholesky);
  const Operand f(name, "factor", factor, plan.entries(), factor), v(name, "v", v_, nnz, factor);
  check_batches(name, f, v);
  Tensor z = new_empty(factor, f.size(plan.entries()));
  dispatch(name, factor, plan.order, [&]<class T, class I>() {
    for_batch(plan, f.batch, [&](int64_t b) {
      T* zb = mutable_data<T>(z) + b * plan.entries();
      plan.set_units<T, I>(zb, T(0));
      kernels().get<T, I>().incomplete_tangent(plan.view<I>(), f.at<T>(b), v.at<T>(b), zb);
    });
  });
  return z;
}

Tensor csr_incomplete_adjoint(const Tensor& order, const Tensor& source, const Tensor& pivot,
                              const Tensor& ptr, const Tensor& pairs, const Tensor& units, bool cholesky,
                              const std::optional<Tensor>&, const std::optional<Tensor>&,
                              const std::optional<Tensor>&, const std::optional<Tensor>&,
                              const Tensor& factor, const Tensor& g_, int64_t nnz) {
  const char* name = "csr_incomplete_adjoint";
  const Plan plan(name, order, source, pivot, ptr, pairs, units, nnz, cholesky);
  const Operand f(name, "factor", factor, plan.entries(), factor), g(name, "g", g_, plan.entries(), factor);
  check_batches(name, f, g);
  const std::vector<int64_t> size = f.size(nnz);
  Tensor w = plan.steps() == nnz ? new_empty(factor, size) : new_zeros(factor, size);
  Tensor used = new_empty(factor, f.size(plan.entries()));
  dispatch(name, factor, plan.order, [&]<class T, class I>() {
    for_batch(plan, f.batch, [&](int64_t b) {
      T* gb = mutable_data<T>(used) + b * plan.entries();
      std::copy_n(g.at<T>(b), plan.entries(), gb);
      kernels().get<T, I>().incomplete_adjoint(plan.view<I>(), f.at<T>(b), gb, mutable_data<T>(w) + b * nnz);
    });
  });
  return w;
}

Tensor csr_incomplete_product(const Tensor& order, const Tensor& source, const Tensor& pivot,
                              const Tensor& ptr, const Tensor& pairs, const Tensor& units, bool cholesky,
                              const std::optional<Tensor>&, const std::optional<Tensor>&,
                              const std::optional<Tensor>&, const std::optional<Tensor>&, const Tensor& x_,
                              const Tensor& z_, int64_t nnz) {
  const char* name = "csr_incomplete_product";
  const Plan plan(name, order, source, pivot, ptr, pairs, units, nnz, cholesky);
  const Operand x(name, "x", x_, plan.entries(), x_), z(name, "z", z_, plan.entries(), x_);
  check_batches(name, x, z);
  const std::vector<int64_t> size = x.size(nnz);
  Tensor out = plan.steps() == nnz ? new_empty(x_, size) : new_zeros(x_, size);
  dispatch(name, x_, plan.order, [&]<class T, class I>() {
    for_batch(plan, x.batch, [&](int64_t b) {
      kernels().get<T, I>().incomplete_product(plan.view<I>(), x.at<T>(b), z.at<T>(b),
                                               mutable_data<T>(out) + b * nnz);
    });
  });
  return out;
}

Tensor csr_incomplete_product_adjoint(const Tensor& order, const Tensor& source, const Tensor& pivot,
                                      const Tensor& ptr, const Tensor& pairs, const Tensor& units,
                                      bool cholesky, const std::optional<Tensor>&,
                                      const std::optional<Tensor>&, const std::optional<Tensor>&,
                                      const std::optional<Tensor>&, const Tensor& x_, const Tensor& w_) {
  const char* name = "csr_incomplete_product_adjoint";
  const int64_t nnz = w_.dim() > 0 ? w_.size(w_.dim() - 1) : 0;
  const Plan plan(name, order, source, pivot, ptr, pairs, units, nnz, cholesky);
  const Operand x(name, "x", x_, plan.entries(), x_), w(name, "w", w_, nnz, x_);
  check_batches(name, x, w);
  Tensor out = new_zeros(x_, x.size(plan.entries()));
  dispatch(name, x_, plan.order, [&]<class T, class I>() {
    for_batch(plan, x.batch, [&](int64_t b) {
      kernels().get<T, I>().incomplete_product_adjoint(plan.view<I>(), x.at<T>(b), w.at<T>(b),
                                                       mutable_data<T>(out) + b * plan.entries());
    });
  });
  return out;
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) {
  m.impl("csr_incomplete_factor", TORCH_BOX(&learnsolve::csr_incomplete_factor));
  m.impl("csr_incomplete_tangent", TORCH_BOX(&learnsolve::csr_incomplete_tangent));
  m.impl("csr_incomplete_adjoint", TORCH_BOX(&learnsolve::csr_incomplete_adjoint));
  m.impl("csr_incomplete_product", TORCH_BOX(&learnsolve::csr_incomplete_product));
  m.impl("csr_incomplete_product_adjoint", TORCH_BOX(&learnsolve::csr_incomplete_product_adjoint));
}
