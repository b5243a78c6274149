// Complete factorization of values, and the contents of its plan, checked.
#include "ops/complete_factor.h"

namespace learnsolve {
namespace {

// Row and column structure hold the same entries, rows begin and columns end as CompleteFill says, and the
// groups of a row lie within it: then every place that a kernel computes is one.
void check_fill(const CompletePlan& plan) {
  if (!contents_checked) return;
  const char* name = plan.name;
  const int64_t n = plan.rows(), nnz = plan.col.numel();
  check_bounds(name, "row_ptr", plan.row_ptr, nnz);
  check_bounds(name, "ptr", plan.ptr, nnz);
  check_range(name, "col", plan.col, 0, n);
  check_range(name, "row", plan.row, 0, n);
  check_range(name, "at", plan.at, 0, nnz);
  check_range(name, "next", plan.next, 1, n + 1);
  const Entries row_ptr(plan.row_ptr), col(plan.col), at(plan.at), ptr(plan.ptr), row(plan.row),
      next(plan.next);
  for (int64_t j = 0; j < n; ++j) {
    const int64_t end = row_ptr[j + 1] - 1;
    bool good = end >= row_ptr[j] && col[end] == j && ptr[j] < ptr[j + 1] && row[ptr[j]] == j && next[j] > j;
    for (int64_t p = row_ptr[j]; good && p < end; ++p) {
      const int64_t k = col[p], q = at[p];
      good = k < j && q > ptr[k] && q < ptr[k + 1] && row[q] == j;
    }
    for (int64_t p = row_ptr[j]; good && p < end;) {
      const int64_t k = col[p], count = std::min(next[k], j) - k, m = ptr[k + 1] - at[p];
      good = count <= end - p;
      for (int64_t c = 1; good && c < count; ++c)
        good = col[p + c] == k + c && ptr[k + c + 1] - at[p + c] == m;
      p += count;
    }
    STD_TORCH_CHECK(good, name, ": the plan is not that of a complete fill, see row ", j);
  }
}

}  // namespace

CompletePlan::CompletePlan(const char* name_, const std::vector<Tensor>& list, bool cholesky_,
                           const Tensor& like)
    : name(name_),
      row_ptr(dense(list[0])),
      col(dense(list[1])),
      at(dense(list[2])),
      ptr(dense(list[3])),
      row(dense(list[4])),
      next(dense(list[5])),
      cholesky(cholesky_) {
  check_index(name, col);
  for (const Tensor* t : {&row_ptr, &at, &ptr, &row, &next})
    STD_TORCH_CHECK(t->scalar_type() == col.scalar_type(), name, ": a plan must have one index type");
  check_device(name, like, {&row_ptr, &col, &at, &ptr, &row, &next});
  STD_TORCH_CHECK(row_ptr.numel() == rows() + 1 && ptr.numel() == rows() + 1 && at.numel() == col.numel() &&
                      row.numel() == col.numel() && Structure::entry(row_ptr, rows()) == col.numel(),
                  name, ": the arrays of the plan do not fit one another");
  check_fill(*this);
}

std::tuple<Tensor, Tensor> complete_factor(const char* name, const std::vector<Tensor>& list, bool cholesky,
                                           const Tensor& values, bool check) {
  const CompletePlan plan(name, list, cholesky, values);
  const BatchOperand a(name, "values", values, plan.nnz(), values);
  Tensor f = new_empty(values, a.size(plan.entries())),
         breakdown = new_empty(values, a.size(2), aoti_torch_dtype_float64());
  double* failed = mutable_data<double>(breakdown);
  dispatch(name, values, plan.col, [&]<class T, class I>() {
    plan.for_batch<T>(values, a.batch, 1, [&](int64_t b, T* work) {
      T pivot = 0;
      failed[2 * b] = static_cast<double>(kernels().get<T, I>().complete_factor(
          plan.view<I>(), a.at<T>(b), mutable_data<T>(f) + b * plan.entries(), work, &pivot));
      failed[2 * b + 1] = static_cast<double>(pivot);
    });
  });
  for (int64_t b = 0; check && b < a.batch; ++b)
    STD_TORCH_CHECK(failed[2 * b] < 0, name, ": the pivot of row ", static_cast<int64_t>(failed[2 * b]),
                    " in the order of elimination",
                    a.batched ? ", of matrix " + std::to_string(b) + "," : std::string(), " is ",
                    failed[2 * b + 1], ", it must be ", cholesky ? "positive" : "nonzero");
  return {f, breakdown};
}

}  // namespace learnsolve
