// Incomplete factorization and the four maps that its derivatives are made of.
#include "ops/factors.h"

#include <algorithm>
#include <string>

#include "ops/host.h"

namespace learnsolve {

// Complete factorization: the operators of ops/factors.cpp where the plan is that of a complete fill.
inline bool is_complete(const std::vector<Tensor>& plan) { return plan.size() == 6; }

// The arrays of CompleteFill (kernels/views.h), contiguous. It holds the tensors: pointers stay valid.
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

namespace {

struct Plan : EliminationPlan {
  Plan(const char* name, const std::vector<Tensor>& list, bool cholesky, int64_t nnz, const Tensor& like)
      : EliminationPlan(name, list, 7, cholesky, nnz, like) {
    STD_TORCH_CHECK(pairs.numel() % 2 == 0 && pairs.numel() / 2 == Structure::entry(ptr, steps()), name,
                    ": order, source, pivot, ptr and pairs do not fit one another");
    check_range(name, "order", order, 0, entries());
    check_range(name, "units", units, 0, entries());
    check_range(name, "source", source, 0, nnz);
    check_bounds(name, "ptr", ptr, pairs.numel() / 2);
    check_range(name, "pairs", pairs, 0, entries());
    check_range(name, "pivot", pivot, -1, entries());
  }
  template <class T, class I>
  void set_units(T* f, T value) const {
    const I* at = data<I>(units);
    for (int64_t i = 0; i < units.numel(); ++i) f[at[i]] = value;
  }
};
using Map = PlannedMap<Plan>;

// One elimination is a chain; those of a batch go side by side.
template <class F>
void for_batch(const Plan& plan, int64_t batch, const F& f) {
  const int64_t work = plan.steps() + plan.pairs.numel() / 2;
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(work, 1));
  parallel_for(0, batch, grain, [&](int64_t b0, int64_t b1) {
    for (int64_t b = b0; b < b1; ++b) f(b);
  });
}

// f.template operator()<T, I>(E, b, its part of `out`) for every member b of the batch, E the elimination.
template <class F>
Tensor for_members(const Map& map, const Tensor& out, const F& f) {
  dispatch(map.plan.name, map.u.tensor, map.plan.order, [&]<class T, class I>() {
    const Elimination<I> E = map.plan.elimination<I>();
    const int64_t size = last_size(out);
    for_batch(map.plan, map.u.batch,
              [&](int64_t b) { f.template operator()<T, I>(E, b, mutable_data<T>(out) + b * size); });
  });
  return out;
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

std::tuple<Tensor, Tensor> csr_incomplete_factor(const std::vector<Tensor>& list, bool cholesky,
                                                 const Tensor& crow_, const Tensor& values, bool check) {
  const char* name = "csr_incomplete_factor";
  if (is_complete(list)) return complete_factor(name, list, cholesky, values, check);
  const Plan plan(name, list, cholesky, last_size(values), values);
  const Tensor crow = dense(crow_);
  check_device(name, values, {&crow});
  check_index(name, crow);
  STD_TORCH_CHECK(crow.numel() > 0 && Structure::entry(crow, crow.numel() - 1) == plan.nnz, name,
                  ": crow must end with the number of values");
  const BatchOperand a(name, "values", values, plan.nnz, values);
  Tensor f = new_empty(values, a.size(plan.entries())),
         breakdown = new_empty(values, a.size(2), aoti_torch_dtype_float64());
  double* failed = mutable_data<double>(breakdown);
  dispatch(name, values, plan.order, [&]<class T, class I>() {
    for_batch(plan, a.batch, [&](int64_t b) {
      T* fb = mutable_data<T>(f) + b * plan.entries();
      plan.set_units<T, I>(fb, T(1));
      const Elimination<I> E = plan.elimination<I>();
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

Tensor csr_incomplete_tangent(const std::vector<Tensor>& plan, bool cholesky, const Tensor& factor,
                              const Tensor& v) {
  if (is_complete(plan))
    return complete_map("csr_incomplete_tangent", plan, cholesky, factor, v, true,
                        [](auto& table) { return table.complete_tangent; });
  const Map map("csr_incomplete_tangent", plan, cholesky, "factor", factor, "v", v);
  return for_members(map, map.new_factors(), [&]<class T, class I>(auto& E, int64_t b, T* z) {
    map.plan.set_units<T, I>(z, T(0));
    kernels().get<T, I>().incomplete_tangent(E, map.u.at<T>(b), map.v.at<T>(b), z);
  });
}

Tensor csr_incomplete_adjoint(const std::vector<Tensor>& plan, bool cholesky, const Tensor& factor,
                              const Tensor& g, int64_t nnz) {
  if (is_complete(plan))
    return complete_map(
        "csr_incomplete_adjoint", plan, cholesky, factor, g, false,
        [](auto& table) { return table.complete_adjoint; }, cholesky ? 2 : 3,
        g.dim() > 0 && g.size(g.dim() - 1) == 0);
  const Map map("csr_incomplete_adjoint", plan, cholesky, "factor", factor, "g", g, nnz);
  const Tensor used = map.new_factors();
  return for_members(map, map.new_values(), [&]<class T, class I>(auto& E, int64_t b, T* w) {
    const int64_t entries = map.plan.entries();
    T* gb = mutable_data<T>(used) + b * entries;
    std::copy_n(map.v.at<T>(b), entries, gb);
    kernels().get<T, I>().incomplete_adjoint(E, map.u.at<T>(b), gb, w);
  });
}

Tensor csr_incomplete_product(const std::vector<Tensor>& plan, bool cholesky, const Tensor& x,
                              const Tensor& z, int64_t nnz) {
  if (is_complete(plan))
    return complete_map("csr_incomplete_product", plan, cholesky, x, z, false,
                        [](auto& table) { return table.complete_product; });
  const Map map("csr_incomplete_product", plan, cholesky, "x", x, "z", z, nnz);
  return for_members(map, map.new_values(), [&]<class T, class I>(auto& E, int64_t b, T* out) {
    kernels().get<T, I>().incomplete_product(E, map.u.at<T>(b), map.v.at<T>(b), out);
  });
}

Tensor csr_incomplete_product_adjoint(const std::vector<Tensor>& plan, bool cholesky, const Tensor& x,
                                      const Tensor& w) {
  if (is_complete(plan))
    return complete_map("csr_incomplete_product_adjoint", plan, cholesky, x, w, true,
                        [](auto& table) { return table.complete_product_adjoint; });
  const Map map("csr_incomplete_product_adjoint", plan, cholesky, "x", x, "w", w);
  return for_members(map, map.new_factors(), [&]<class T, class I>(auto& E, int64_t b, T* out) {
    std::fill_n(out, map.plan.entries(), T(0));
    kernels().get<T, I>().incomplete_product_adjoint(E, map.u.at<T>(b), map.v.at<T>(b), out);
  });
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) {
  m.impl("csr_incomplete_factor", TORCH_BOX(&learnsolve::csr_incomplete_factor));
  m.impl("csr_incomplete_tangent", TORCH_BOX(&learnsolve::csr_incomplete_tangent));
  m.impl("csr_incomplete_adjoint", TORCH_BOX(&learnsolve::csr_incomplete_adjoint));
  m.impl("csr_incomplete_product", TORCH_BOX(&learnsolve::csr_incomplete_product));
  m.impl("csr_incomplete_product_adjoint", TORCH_BOX(&learnsolve::csr_incomplete_product_adjoint));
}
