// Complete factorization: the operators of ops/incomplete.cpp where the plan is that of a complete fill.
#pragma once

#include <algorithm>
#include <string>

#include "ops/check.h"

namespace learnsolve {

inline bool is_complete(const std::vector<Tensor>& plan) { return plan.size() == 6; }

// The arrays of CompleteFill (kernels/elimination.h), contiguous. It holds the tensors: pointers stay valid.
struct CompletePlan {
  const char* name;
  Tensor row_ptr, col, at, ptr, row, next;
  bool cholesky;

  CompletePlan(const char* name_, const std::vector<Tensor>& list, bool cholesky_, const Tensor& like);
  int64_t rows() const { return next.numel(); }
  int64_t entries() const { return (cholesky ? 1 : 2) * col.numel(); }
  int64_t nnz() const { return entries() - (cholesky ? 0 : rows()); }
  template <class I>
  CompleteFill<I> view() const {
    return {rows(),       data<I>(row_ptr), data<I>(col),  data<I>(at),
            data<I>(ptr), data<I>(row),     data<I>(next), cholesky};
  }
  // f(b, memory for so many operands) for the members of a batch of tensors as `like`.
  template <class T, class F>
  void for_batch(const Tensor& like, int64_t batch, int64_t operands, const F& f) const {
    const int64_t size = operands * col.numel() + 32 * rows();
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(col.numel(), 1));
    parallel_for(0, batch, grain, [&](int64_t b0, int64_t b1) {
      const Tensor work = new_empty(like, Size{size});  // which the pool keeps: fresh pages take time
      for (int64_t b = b0; b < b1; ++b) f(b, mutable_data<T>(work));
    });
  }
};

std::tuple<Tensor, Tensor> complete_factor(const char* name, const std::vector<Tensor>& list, bool cholesky,
                                           const Tensor& values, bool check);

// One of the maps, which `kernel` takes out of a table: of u, in the places of the factors, and v, in those
// of A's values, into the former (`to_factors`), or with v and the result the other way round. `alone`: v has
// no entries, and the kernel gets null in its place.
template <class F>
Tensor complete_map(const char* name, const std::vector<Tensor>& list, bool cholesky, const Tensor& u_,
                    const Tensor& v_, bool to_factors, const F& kernel, int64_t operands = 3,
                    bool alone = false) {
  const CompletePlan plan(name, list, cholesky, u_);
  const auto size = [&](bool factors) { return factors ? plan.entries() : plan.nnz(); };
  const BatchOperand u(name, "the first operand", u_, plan.entries(), u_),
      v(name, "the second operand", v_, alone ? 0 : size(!to_factors), u_);
  STD_TORCH_CHECK(u.batched == v.batched && u.batch == v.batch, name, ": batches must be the same, got ",
                  u.batch, " and ", v.batch);
  const Tensor out = new_empty(u_, u.size(size(to_factors)));
  dispatch(name, u_, plan.col, [&]<class T, class I>() {
    plan.for_batch<T>(u_, u.batch, operands, [&](int64_t b, T* work) {
      kernel(kernels().get<T, I>())(plan.view<I>(), u.at<T>(b), alone ? nullptr : v.at<T>(b),
                                    mutable_data<T>(out) + b * size(to_factors), work);
    });
  });
  return out;
}

}  // namespace learnsolve
