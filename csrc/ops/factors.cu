// Incomplete factorization for CUDA tensors, by levels.
#include <cstdint>

#include "kernels/factors.cuh"
#include "ops/device.cuh"
#include "ops/factors.h"

namespace learnsolve {

// run(from, to) for the levels from <= l < to of a run, wide(l) for a level that is not narrow(l); the last
// level first if `reversed`.
template <class Narrow, class Run, class Wide>
void for_level_runs(int64_t count, bool reversed, const Narrow& narrow, const Run& run, const Wide& wide) {
  const auto level = [&](int64_t n) { return reversed ? count - 1 - n : n; };
  for (int64_t n = 0; n < count; ++n) {
    int64_t end = n;
    while (end < count && narrow(level(end))) ++end;
    if (end == n) {
      wide(level(n));
    } else {
      reversed ? run(count - end, count - n) : run(n, end);
      n = end - 1;
    }
  }
}

namespace {

using namespace cuda;

template <class Map, class T, class I>
LS_KERNEL(kThreads)
steps_kernel(LS_ARGUMENT PlannedSteps<T, I> of, int64_t begin, int64_t end) {
  for_aside(of.P.batch, [&](int64_t b) {
    for_items<1>(end - begin, [&](const auto&, int64_t t) {
      Map::step(of.P, begin + t, of.x.of(b), of.v.of(b), of.out.of(b));
    });
  });
}

// Levels from <= l < to, one after another; a member of the batch a block.
template <class Map, class T, class I>
LS_KERNEL(kLevelThreads)
levels_kernel(LS_ARGUMENT PlannedSteps<T, I> of, int64_t from, int64_t to) {
  for_blocks(of.P.batch, [&](int64_t b) {
    for (int64_t n = from; n < to; ++n) {
      const int64_t level = Map::kOrder == Order::kReversedLevels ? from + to - 1 - n : n;
      const int64_t end = of.P.levels[level + 1];
      for (int64_t t = of.P.levels[level] + threadIdx.x; t < end; t += kLevelThreads)
        Map::step(of.P, t, of.x.of(b), of.v.of(b), of.out.of(b));
      __syncthreads();
    }
  });
}

template <class T, class I>
LS_KERNEL(kThreads)
breakdown_kernel(LS_ARGUMENT LevelPlan<I> P, const I* crow, int64_t rows, const T* f, double* breakdown) {
  LS_SHARED(firsts, int64_t[kThreads]);
  for_blocks(P.batch,
             [&](int64_t b) { find_breakdown(P, crow, rows, f + b * P.entries, firsts, breakdown + 2 * b); });
}

template <class T, class I>
LS_KERNEL(kThreads)
units_kernel(const I* units, int64_t count, T value, T* f, int64_t entries, int64_t batch) {
  for_aside(batch, [&](int64_t b) {
    for_items<1>(count, [&](const auto&, int64_t n) { f[b * entries + units[n]] = value; });
  });
}

// The four additional tensors of a plan on a device: `bounds`, where the levels of the steps begin, on the
// host and there, and the uses of each entry of the factors.
struct Plan : EliminationPlan {
  Tensor bounds, levels, uses_ptr, uses;

  Plan(const char* name, const std::vector<Tensor>& list, bool cholesky, int64_t nnz, const Tensor& like)
      : EliminationPlan(name, list, 11, cholesky, nnz, like),
        bounds(dense(list[7])),
        levels(dense(list[8])),
        uses_ptr(dense(list[9])),
        uses(dense(list[10])) {
    check_device(name, like, {&levels, &uses_ptr, &uses});
    STD_TORCH_CHECK(uses_ptr.numel() == entries() + 1 && uses_ptr.scalar_type() == order.scalar_type() &&
                        uses.scalar_type() == order.scalar_type(),
                    name, ": the uses must be those of all entries, of the plan's index type");
    STD_TORCH_CHECK(!bounds.is_cuda() && bounds.scalar_type() == ScalarType::Long &&
                        levels.scalar_type() == ScalarType::Long && bounds.numel() > 0 &&
                        levels.numel() == bounds.numel() && bound(0) == 0 && bound(n_levels()) == steps(),
                    name, ": the levels must be those of all steps, int64, on the host and on the device");
  }
  int64_t n_levels() const { return bounds.numel() - 1; }
  int64_t bound(int64_t level) const { return data<int64_t>(bounds)[level]; }

  template <class I>
  LevelPlan<I> view(int64_t batch) const {
    return {elimination<I>(), data<int64_t>(levels), data<I>(uses_ptr), data<I>(uses), entries(), nnz, batch};
  }

  template <class I, class T>
  void set_units(const OnDevice& device, T* f, T value, int64_t batch) const {
    if (units.numel() == 0 || batch == 0) return;
    const dim3 grid(blocks_for(units.numel(), kThreads), blocks_aside(batch));
    LS_LAUNCH(grid, kThreads, device.stream, (data<I>(units), units.numel(), value, f, entries(), batch),
              units_kernel<T, I>);
    STD_CUDA_CHECK(cudaGetLastError());
  }

  // All steps, or level by level.
  template <class Map, class T, class I>
  void run(const OnDevice& device, const PlannedSteps<T, I>& of) const {
    const int64_t batch = of.P.batch;
    const auto at_once = [&](int64_t begin, int64_t end) {
      if (begin == end || batch == 0) return;
      const dim3 grid(blocks_for(end - begin, kThreads), blocks_aside(batch));
      LS_LAUNCH(grid, kThreads, device.stream, (of, begin, end), steps_kernel<Map, T, I>);
      STD_CUDA_CHECK(cudaGetLastError());
    };
    if constexpr (Map::kOrder == Order::kAny) return at_once(0, steps());
    for_level_runs(
        n_levels(), Map::kOrder == Order::kReversedLevels,
        [&](int64_t l) { return bound(l + 1) - bound(l) < kNarrow; },
        [&](int64_t from, int64_t to) {
          if (batch == 0) return;
          LS_LAUNCH(blocks_for(batch), kLevelThreads, device.stream, (of, from, to),
                    levels_kernel<Map, T, I>);
          STD_CUDA_CHECK(cudaGetLastError());
        },
        [&](int64_t l) { at_once(bound(l), bound(l + 1)); });
  }
};

// In the places of the factors, zeros at `units`, or in those of A's values.
template <class Map>
Tensor derivative(const PlannedMap<Plan>& map, bool of_factors) {
  const Tensor out = of_factors ? map.new_factors() : map.new_values();
  const OnDevice device(map.u.tensor);
  const Plan& plan = map.plan;
  dispatch(plan.name, map.u.tensor, plan.order, [&]<class T, class I>() {
    T* to = mutable_data<T>(out);
    if (of_factors) plan.set_units<I>(device, to, T(0), map.u.batch);
    plan.run<Map, T, I>(
        device, {plan.view<I>(map.u.batch), batch_of<T>(map.u), batch_of<T>(map.v), {to, last_size(out)}});
  });
  return out;
}

}  // namespace

std::tuple<Tensor, Tensor> csr_incomplete_factor_cuda(const std::vector<Tensor>& list, bool cholesky,
                                                      const Tensor& crow_, const Tensor& values, bool) {
  const char* name = "csr_incomplete_factor";
  const Plan plan(name, list, cholesky, last_size(values), values);
  const Tensor crow = dense(crow_);
  check_device(name, values, {&crow});
  STD_TORCH_CHECK(crow.numel() > 0, name, ": crow must hold rows + 1 entries");
  const BatchOperand a(name, "values", values, plan.nnz, values);
  Tensor f = new_empty(values, a.size(plan.entries())),
         breakdown = new_empty(values, a.size(2), aoti_torch_dtype_float64());
  const OnDevice device(values);
  dispatch(name, values, plan.order, [&]<class T, class I>() {
    const LevelPlan<I> P = plan.view<I>(a.batch);
    plan.set_units<I>(device, mutable_data<T>(f), T(1), a.batch);
    plan.run<Factor, T, I>(device, {P, {nullptr, 0}, batch_of<T>(a), {mutable_data<T>(f), P.entries}});
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

Tensor csr_incomplete_tangent_cuda(const std::vector<Tensor>& plan, bool cholesky, const Tensor& factor,
                                   const Tensor& v) {
  const PlannedMap<Plan> map("csr_incomplete_tangent", plan, cholesky, "factor", factor, "v", v);
  return derivative<Tangent>(map, true);
}

Tensor csr_incomplete_adjoint_cuda(const std::vector<Tensor>& plan, bool cholesky, const Tensor& factor,
                                   const Tensor& g, int64_t nnz) {
  const PlannedMap<Plan> map("csr_incomplete_adjoint", plan, cholesky, "factor", factor, "g", g, nnz);
  return derivative<Adjoint>(map, false);
}

Tensor csr_incomplete_product_cuda(const std::vector<Tensor>& plan, bool cholesky, const Tensor& x,
                                   const Tensor& z, int64_t nnz) {
  const PlannedMap<Plan> map("csr_incomplete_product", plan, cholesky, "x", x, "z", z, nnz);
  return derivative<Product>(map, false);
}

Tensor csr_incomplete_product_adjoint_cuda(const std::vector<Tensor>& plan, bool cholesky, const Tensor& x,
                                           const Tensor& w) {
  const PlannedMap<Plan> map("csr_incomplete_product_adjoint", plan, cholesky, "x", x, "w", w);
  return derivative<ProductAdjoint>(map, true);
}

}  // namespace learnsolve

LS_OPERATORS(m) {
  m.impl("csr_incomplete_factor", TORCH_BOX(&learnsolve::csr_incomplete_factor_cuda));
  m.impl("csr_incomplete_tangent", TORCH_BOX(&learnsolve::csr_incomplete_tangent_cuda));
  m.impl("csr_incomplete_adjoint", TORCH_BOX(&learnsolve::csr_incomplete_adjoint_cuda));
  m.impl("csr_incomplete_product", TORCH_BOX(&learnsolve::csr_incomplete_product_cuda));
  m.impl("csr_incomplete_product_adjoint", TORCH_BOX(&learnsolve::csr_incomplete_product_adjoint_cuda));
}
