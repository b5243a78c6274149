// Incomplete factorisation for CUDA tensors, by levels. bounds to uses are where each level begins, on the
// host and on the device, and the uses of each entry (kernels/incomplete.cuh): learnsolve/ops/_incomplete.py
// makes them.
#include "kernels/incomplete.cuh"
#include "ops/device.cuh"

namespace learnsolve {
namespace {

using namespace cuda;

constexpr int kLevelThreads = 512;
// Levels with fewer steps go to one block, one after another without a launch between.
#ifdef __CUDACC__
constexpr int64_t kNarrow = 4 * kLevelThreads;
#else
constexpr int64_t kNarrow = 8;  // tests have both
#endif

template <class Step>
LS_KERNEL(kThreads)
steps_kernel(LS_ARGUMENT Step step, int64_t begin, int64_t end) {
  for_aside(step.P.batch, [&](int64_t b) {
    for_items<1>(end - begin, [&](const auto& team, int64_t t) { team.first([&] { step(begin + t, b); }); });
  });
}

template <class Step>
LS_KERNEL(kLevelThreads)
levels_kernel(LS_ARGUMENT Step step, int64_t from, int64_t to) {
  const Block<kLevelThreads> team;
  for_blocks(step.P.batch, [&](int64_t b) {
    for (int64_t n = from; n < to; ++n) {
      const int64_t level = Step::kReversed ? to - 1 - (n - from) : n;
      const int64_t begin = step.P.levels[level], end = step.P.levels[level + 1];
      team.each([&](int lane) {
        for (int64_t t = begin + lane; t < end; t += kLevelThreads) step(t, b);
      });
      team.sync();
    }
  });
}

template <class T, class I>
LS_KERNEL(kThreads)
breakdown_kernel(LS_ARGUMENT LevelPlan<I> P, const I* crow, int64_t rows, const T* f, double* breakdown) {
  LS_SHARED int64_t firsts[kThreads];
  const Block<kThreads> team;
  for_blocks(P.batch, [&](int64_t b) {
    find_breakdown(team, P, crow, rows, f + b * P.entries, firsts, breakdown + 2 * b);
  });
}

template <class T, class I>
LS_KERNEL(kThreads)
units_kernel(const I* units, int64_t count, T value, T* f, int64_t entries, int64_t batch) {
  for_aside(batch, [&](int64_t b) {
    for_items<1>(
        count, [&](const auto& team, int64_t n) { team.first([&] { f[b * entries + units[n]] = value; }); });
  });
}

// (size) or (B, size). One that is shared by the batch (expanded) is not copied.
struct BatchOperand {
  Tensor tensor;
  int64_t batch, stride;
  bool batched;

  BatchOperand(const char* name, const char* arg, const Tensor& t, int64_t size, const Tensor& like)
      : tensor(t), batched(t.dim() == 2) {
    STD_TORCH_CHECK((t.dim() == 1 || batched) && t.size(t.dim() - 1) == size, name, ": ", arg, " must be (",
                    size, ") or (B, ", size, ")");
    STD_TORCH_CHECK(t.scalar_type() == like.scalar_type(), name, ": operands must have one dtype");
    batch = batched ? t.size(0) : 1;
    const bool shared = batched && batch > 1 && t.stride(0) == 0 && t.stride(1) == 1;
    if (!shared) tensor = dense(t);
    check_device(name, like, {&tensor});
    stride = shared ? 0 : size;
  }
  template <class T>
  Operand<T> of() const {
    return {data<T>(tensor), stride};
  }
  std::vector<int64_t> size(int64_t n) const {
    return batched ? std::vector<int64_t>{batch, n} : std::vector<int64_t>{n};
  }
};

void check_batches(const char* name, const BatchOperand& a, const BatchOperand& b) {
  STD_TORCH_CHECK(a.batched == b.batched && a.batch == b.batch, name, ": batches must be the same, got ",
                  a.batch, " and ", b.batch);
}

// A plan, its arrays contiguous. It holds the tensors: pointers stay valid.
struct Plan {
  Tensor order, source, pivot, ptr, pairs, units;
  std::optional<Tensor> on_host, levels, uses_ptr, uses;
  int64_t nnz;
  bool cholesky;

  Plan(const char* name, const Tensor& like, const Tensor& order_, const Tensor& source_,
       const Tensor& pivot_, const Tensor& ptr_, const Tensor& pairs_, const Tensor& units_, int64_t nnz_,
       bool cholesky_, std::initializer_list<std::optional<Tensor>> by_level)
      : order(dense(order_)),
        source(dense(source_)),
        pivot(dense(pivot_)),
        ptr(dense(ptr_)),
        pairs(dense(pairs_)),
        units(dense(units_)),
        nnz(nnz_),
        cholesky(cholesky_) {
    std::optional<Tensor>* const taken[] = {&on_host, &levels, &uses_ptr, &uses};
    for (size_t n = 0; n < 4; ++n) {
      STD_TORCH_CHECK(by_level.begin()[n].has_value(), name, ": on a CUDA device a plan has levels and uses");
      *taken[n] = dense(*by_level.begin()[n]);
    }
    for (const Tensor* t : {&source, &pivot, &ptr, &pairs, &units, &*uses_ptr, &*uses})
      STD_TORCH_CHECK(t->scalar_type() == order.scalar_type(), name, ": a plan must have one index type");
    check_device(name, like, {&order, &source, &pivot, &ptr, &pairs, &units, &*levels, &*uses_ptr, &*uses});
    STD_TORCH_CHECK(source.numel() == steps() && pivot.numel() == steps() && ptr.numel() == steps() + 1 &&
                        uses_ptr->numel() == entries() + 1 && steps() <= nnz,
                    name, ": order, source, pivot, ptr and uses do not fit one another");
    STD_TORCH_CHECK(!on_host->is_cuda() && on_host->scalar_type() == ScalarType::Long &&
                        levels->scalar_type() == ScalarType::Long && on_host->numel() > 0 &&
                        levels->numel() == on_host->numel() && bound(0) == 0 && bound(n_levels()) == steps(),
                    name, ": the levels must be those of all steps, int64, on the host and on the device");
  }
  int64_t steps() const { return order.numel(); }
  int64_t entries() const { return steps() + units.numel(); }
  int64_t n_levels() const { return on_host->numel() - 1; }
  int64_t bound(int64_t level) const { return data<int64_t>(*on_host)[level]; }

  template <class I>
  LevelPlan<I> view(int64_t batch) const {
    return {
        {steps(), data<I>(order), data<I>(source), data<I>(pivot), data<I>(ptr), data<I>(pairs), cholesky},
        data<int64_t>(levels),
        data<I>(uses_ptr),
        data<I>(uses),
        entries(),
        nnz,
        batch};
  }

  template <class T, class I>
  void set_units(const OnDevice& device, T* f, T value, int64_t batch) const {
    if (units.numel() == 0 || batch == 0) return;
    const dim3 grid(blocks_for(units.numel(), kThreads), blocks_aside(batch));
    LS_LAUNCH(grid, kThreads, device.stream, (data<I>(units), units.numel(), value, f, entries(), batch),
              units_kernel<T, I>);
    STD_CUDA_CHECK(cudaGetLastError());
  }

  // All steps at once.
  template <class Step>
  void run(const OnDevice& device, const Step& step, int64_t begin, int64_t end) const {
    if (begin == end || step.P.batch == 0) return;
    const dim3 grid(blocks_for(end - begin, kThreads), blocks_aside(step.P.batch));
    LS_LAUNCH(grid, kThreads, device.stream, (step, begin, end), steps_kernel<Step>);
    STD_CUDA_CHECK(cudaGetLastError());
  }

  // Level by level: a launch for each wide one, one for all narrow ones between.
  template <class Step>
  void run_levels(const OnDevice& device, const Step& step) const {
    if (step.P.batch == 0) return;
    const int64_t count = n_levels();
    const auto level = [&](int64_t n) { return Step::kReversed ? count - 1 - n : n; };
    for (int64_t n = 0; n < count;) {
      int64_t end = n;
      while (end < count && bound(level(end) + 1) - bound(level(end)) < kNarrow) ++end;
      if (end == n) {
        run(device, step, bound(level(n)), bound(level(n) + 1));
        ++n;
        continue;
      }
      const int64_t from = Step::kReversed ? level(end - 1) : n, to = from + end - n;
      LS_LAUNCH(blocks_for(step.P.batch), kLevelThreads, device.stream, (step, from, to),
                levels_kernel<Step>);
      STD_CUDA_CHECK(cudaGetLastError());
      n = end;
    }
  }
};

Tensor new_double(const Tensor& like, const std::vector<int64_t>& size) {
  return torch::stable::new_empty(like, size, ScalarType::Double);
}

}  // namespace

std::tuple<Tensor, Tensor> csr_incomplete_factor_cuda(
    const Tensor& order, const Tensor& source, const Tensor& pivot, const Tensor& ptr, const Tensor& pairs,
    const Tensor& units, bool cholesky, const std::optional<Tensor>& bounds,
    const std::optional<Tensor>& levels, const std::optional<Tensor>& uses_ptr,
    const std::optional<Tensor>& uses, const Tensor& crow_, const Tensor& values, bool) {
  const char* name = "csr_incomplete_factor";
  const int64_t nnz = values.dim() > 0 ? values.size(values.dim() - 1) : 0;
  const Plan plan(name, values, order, source, pivot, ptr, pairs, units, nnz, cholesky,
                  {bounds, levels, uses_ptr, uses});
  const Tensor crow = dense(crow_);
  check_device(name, values, {&crow});
  STD_TORCH_CHECK(crow.numel() > 0, name, ": crow must hold rows + 1 entries");
  const BatchOperand a(name, "values", values, nnz, values);
  Tensor f = new_empty(values, a.size(plan.entries())), breakdown = new_double(values, a.size(2));
  const OnDevice device(values);
  dispatch(name, values, plan.order, [&]<class T, class I>() {
    plan.set_units<T, I>(device, mutable_data<T>(f), T(1), a.batch);
    const LevelPlan<I> P = plan.view<I>(a.batch);
    plan.run_levels(device, FactorStep<T, I>{P, a.of<T>(), mutable_data<T>(f)});
    if (a.batch == 0) return;
    // A pattern with rows of another index type than the plan's: its numbers fit either.
    const Tensor rows = crow.scalar_type() == plan.order.scalar_type()
                            ? crow
                            : torch::stable::to(crow, plan.order.scalar_type());
    LS_LAUNCH(blocks_for(a.batch), kThreads, device.stream,
              (P, data<I>(rows), rows.numel() - 1, data<T>(f), mutable_data<double>(breakdown)),
              breakdown_kernel<T, I>);
    STD_CUDA_CHECK(cudaGetLastError());
  });
  return {f, breakdown};
}

Tensor csr_incomplete_tangent_cuda(const Tensor& order, const Tensor& source, const Tensor& pivot,
                                   const Tensor& ptr, const Tensor& pairs, const Tensor& units, bool cholesky,
                                   const std::optional<Tensor>& bounds, const std::optional<Tensor>& levels,
                                   const std::optional<Tensor>& uses_ptr, const std::optional<Tensor>& uses,
                                   const Tensor& factor, const Tensor& v_) {
  const char* name = "csr_incomplete_tangent";
  const int64_t nnz = v_.dim() > 0 ? v_.size(v_.dim() - 1) : 0;
  const Plan plan(name, factor, order, source, pivot, ptr, pairs, units, nnz, cholesky,
                  {bounds, levels, uses_ptr, uses});
  const BatchOperand f(name, "factor", factor, plan.entries(), factor), v(name, "v", v_, nnz, factor);
  check_batches(name, f, v);
  Tensor z = new_empty(factor, f.size(plan.entries()));
  const OnDevice device(factor);
  dispatch(name, factor, plan.order, [&]<class T, class I>() {
    plan.set_units<T, I>(device, mutable_data<T>(z), T(0), f.batch);
    plan.run_levels(device,
                    TangentStep<T, I>{plan.view<I>(f.batch), f.of<T>(), v.of<T>(), mutable_data<T>(z)});
  });
  return z;
}

Tensor csr_incomplete_adjoint_cuda(const Tensor& order, const Tensor& source, const Tensor& pivot,
                                   const Tensor& ptr, const Tensor& pairs, const Tensor& units, bool cholesky,
                                   const std::optional<Tensor>& bounds, const std::optional<Tensor>& levels,
                                   const std::optional<Tensor>& uses_ptr, const std::optional<Tensor>& uses,
                                   const Tensor& factor, const Tensor& g_, int64_t nnz) {
  const char* name = "csr_incomplete_adjoint";
  const Plan plan(name, factor, order, source, pivot, ptr, pairs, units, nnz, cholesky,
                  {bounds, levels, uses_ptr, uses});
  const BatchOperand f(name, "factor", factor, plan.entries(), factor),
      g(name, "g", g_, plan.entries(), factor);
  check_batches(name, f, g);
  Tensor w = plan.steps() == nnz ? new_empty(factor, f.size(nnz)) : new_zeros(factor, f.size(nnz));
  const OnDevice device(factor);
  dispatch(name, factor, plan.order, [&]<class T, class I>() {
    plan.run_levels(device,
                    AdjointStep<T, I>{plan.view<I>(f.batch), f.of<T>(), g.of<T>(), mutable_data<T>(w)});
  });
  return w;
}

Tensor csr_incomplete_product_cuda(const Tensor& order, const Tensor& source, const Tensor& pivot,
                                   const Tensor& ptr, const Tensor& pairs, const Tensor& units, bool cholesky,
                                   const std::optional<Tensor>& bounds, const std::optional<Tensor>& levels,
                                   const std::optional<Tensor>& uses_ptr, const std::optional<Tensor>& uses,
                                   const Tensor& x_, const Tensor& z_, int64_t nnz) {
  const char* name = "csr_incomplete_product";
  const Plan plan(name, x_, order, source, pivot, ptr, pairs, units, nnz, cholesky,
                  {bounds, levels, uses_ptr, uses});
  const BatchOperand x(name, "x", x_, plan.entries(), x_), z(name, "z", z_, plan.entries(), x_);
  check_batches(name, x, z);
  Tensor out = plan.steps() == nnz ? new_empty(x_, x.size(nnz)) : new_zeros(x_, x.size(nnz));
  const OnDevice device(x_);
  dispatch(name, x_, plan.order, [&]<class T, class I>() {
    const ProductStep<T, I> step{plan.view<I>(x.batch), x.of<T>(), z.of<T>(), mutable_data<T>(out)};
    plan.run(device, step, 0, plan.steps());
  });
  return out;
}

Tensor csr_incomplete_product_adjoint_cuda(const Tensor& order, const Tensor& source, const Tensor& pivot,
                                           const Tensor& ptr, const Tensor& pairs, const Tensor& units,
                                           bool cholesky, const std::optional<Tensor>& bounds,
                                           const std::optional<Tensor>& levels,
                                           const std::optional<Tensor>& uses_ptr,
                                           const std::optional<Tensor>& uses, const Tensor& x_,
                                           const Tensor& w_) {
  const char* name = "csr_incomplete_product_adjoint";
  const int64_t nnz = w_.dim() > 0 ? w_.size(w_.dim() - 1) : 0;
  const Plan plan(name, x_, order, source, pivot, ptr, pairs, units, nnz, cholesky,
                  {bounds, levels, uses_ptr, uses});
  const BatchOperand x(name, "x", x_, plan.entries(), x_), w(name, "w", w_, nnz, x_);
  check_batches(name, x, w);
  Tensor out = new_empty(x_, x.size(plan.entries()));
  const OnDevice device(x_);
  dispatch(name, x_, plan.order, [&]<class T, class I>() {
    plan.set_units<T, I>(device, mutable_data<T>(out), T(0), x.batch);
    const ProductAdjointStep<T, I> step{plan.view<I>(x.batch), x.of<T>(), w.of<T>(), mutable_data<T>(out)};
    plan.run(device, step, 0, plan.steps());
  });
  return out;
}

}  // namespace learnsolve

LS_OPERATORS(m) {
  m.impl("csr_incomplete_factor", TORCH_BOX(&learnsolve::csr_incomplete_factor_cuda));
  m.impl("csr_incomplete_tangent", TORCH_BOX(&learnsolve::csr_incomplete_tangent_cuda));
  m.impl("csr_incomplete_adjoint", TORCH_BOX(&learnsolve::csr_incomplete_adjoint_cuda));
  m.impl("csr_incomplete_product", TORCH_BOX(&learnsolve::csr_incomplete_product_cuda));
  m.impl("csr_incomplete_product_adjoint", TORCH_BOX(&learnsolve::csr_incomplete_product_adjoint_cuda));
}
