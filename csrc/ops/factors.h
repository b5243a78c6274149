// What the operators of an incomplete factorization take, on every device: a plan and operands.
#pragma once

#include "kernels/views.h"
#include "ops/tensors.h"

namespace learnsolve {

// The plan of kernels/views.h for a matrix with `nnz` values, its arrays contiguous. It holds the
// tensors: pointers stay valid. `entries`: of the factors, of which those at `units` are the ones of L.
// `sizes`, on the host: (entries, nnz) of the matrix that it was made for.
struct EliminationPlan {
  const char* name;
  Tensor order, source, pivot, ptr, pairs, units, sizes;
  bool cholesky;
  int64_t nnz;

  // `list` holds them and, on a CUDA device, four more.
  EliminationPlan(const char* name_, const std::vector<Tensor>& list, size_t count, bool cholesky_,
                  int64_t nnz_, const Tensor& like)
      : name(name_),
        order(dense(listed(name, "a plan", list, count)[0])),
        source(dense(list[1])),
        pivot(dense(list[2])),
        ptr(dense(list[3])),
        pairs(dense(list[4])),
        units(dense(list[5])),
        sizes(dense(list[6])),
        cholesky(cholesky_),
        nnz(nnz_) {
    check_index(name, order);
    for (const Tensor* t : {&source, &pivot, &ptr, &pairs, &units})
      STD_TORCH_CHECK(t->scalar_type() == order.scalar_type(), name, ": a plan must have one index type");
    check_device(name, like, {&order, &source, &pivot, &ptr, &pairs, &units});
    STD_TORCH_CHECK(
        source.numel() == steps() && pivot.numel() == steps() && ptr.numel() == steps() + 1 && steps() <= nnz,
        name, ": order, source, pivot, ptr and pairs do not fit one another");
    STD_TORCH_CHECK(sizes.is_cpu() && sizes.scalar_type() == ScalarType::Long && sizes.numel() == 2, name,
                    ": sizes must be two int64 numbers on the host");
    STD_TORCH_CHECK(data<int64_t>(sizes)[0] == entries() && data<int64_t>(sizes)[1] == nnz, name,
                    ": the plan is for ", data<int64_t>(sizes)[0], " entries of the factors and ",
                    data<int64_t>(sizes)[1], " values, got ", entries(), " and ", nnz);
  }
  int64_t steps() const { return order.numel(); }
  int64_t entries() const { return steps() + units.numel(); }
  template <class I>
  Elimination<I> elimination() const {
    return {steps(), data<I>(order), data<I>(source), data<I>(pivot), data<I>(ptr), data<I>(pairs), cholesky};
  }
};

inline int64_t last_size(const Tensor& t) { return t.dim() > 0 ? t.size(t.dim() - 1) : 0; }

// A map of two operands on a plan: u in the places of the factors, v in those or in those of A's values.
template <class Plan>
struct PlannedMap {
  Plan plan;
  BatchOperand u, v;

  PlannedMap(const char* name, const std::vector<Tensor>& list, bool cholesky, const char* u_name,
             const Tensor& u_, const char* v_name, const Tensor& v_,
             std::optional<int64_t> nnz = std::nullopt)
      : plan(name, list, cholesky, nnz ? *nnz : last_size(v_), u_),
        u(name, u_name, u_, plan.entries(), u_),
        v(name, v_name, v_, nnz ? plan.entries() : plan.nnz, u_) {
    STD_TORCH_CHECK(u.batched == v.batched && u.batch == v.batch, name, ": batches must be the same, got ",
                    u.batch, " and ", v.batch);
  }
  // Results in the places of the factors, and in those of A's values, of which a plan may leave some out.
  Tensor new_factors() const { return new_empty(u.tensor, u.size(plan.entries())); }
  Tensor new_values() const {
    const Size size = u.size(plan.nnz);
    return plan.steps() == plan.nnz ? new_empty(u.tensor, size) : new_zeros(u.tensor, size);
  }
};

}  // namespace learnsolve
