// Stencils on structured grids: the operator, its transpose, and the products that are their derivatives.
#include "ops/check.h"

namespace learnsolve {
namespace {

// Points of a block: y stays in the first-level cache from one chunk of offsets to the next.
constexpr int64_t kBlockPoints = 4096;

// The view and what it points to.
struct Stencil {
  StencilView view{};
  std::vector<int64_t> offsets, bounds, field, coefficients, constants;  // the last three: shapes
  int64_t d;

  // `like` holds a field, in its last axes.
  Stencil(const char* name, const Tensor& like, const std::vector<int64_t>& given,
          const std::vector<int64_t>& periodic, bool transpose)
      : d(static_cast<int64_t>(periodic.size())) {
    STD_TORCH_CHECK(d >= 1 && d <= 3, name, ": periodic must have 1, 2 or 3 entries, got ", d);
    STD_TORCH_CHECK(given.size() % d == 0, name, ": offsets must hold ", d, " numbers each");
    STD_TORCH_CHECK(like.dim() == d || like.dim() == d + 1, name, ": a field must have ", d,
                    " axes and perhaps one of a batch, got ", like.dim());
    const int64_t count = static_cast<int64_t>(given.size()) / d;
    offsets.assign(3 * count, 0);
    for (int64_t a = 0; a < 3; ++a) view.grid[a] = 1, view.periodic[a] = false;
    coefficients.push_back(count), constants.push_back(count);
    for (int64_t a = 0; a < d; ++a) {
      const int64_t n = like.size(like.dim() - d + a), at = 3 - d + a;
      view.grid[at] = n;
      view.periodic[at] = periodic[a] != 0;
      field.push_back(n), coefficients.push_back(n), constants.push_back(1);
      for (int64_t k = 0; k < count; ++k) {
        int64_t o = given[k * d + a];
        o = n == 0 ? 0 : view.periodic[at] ? o % n : std::clamp(o, -n, n);
        offsets[3 * k + at] = transpose ? -o : o;
      }
    }
    const int64_t n = view.grid[2];
    bounds = {0, n};
    for (int64_t k = 0; k < count; ++k) {
      const int64_t o = offsets[3 * k + 2];
      for (const int64_t border : {-o, n - o})
        if (border > 0 && border < n) bounds.push_back(border);
    }
    std::sort(bounds.begin(), bounds.end());
    bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
    view.offsets = offsets.data();
    view.count = count;
    view.bounds = bounds.data();
    view.pieces = static_cast<int64_t>(bounds.size()) - 1;
    view.segment = std::clamp<int64_t>(n, 1, kBlockPoints);
    view.segments = std::max<int64_t>(1, (n + view.segment - 1) / view.segment);
    view.lines = std::max<int64_t>(1, kBlockPoints / view.segment);
  }
  Stencil(const Stencil&) = delete;

  int64_t batch(const char* name, const char* arg, const Tensor& t) const {
    check_tail(name, arg, t, field);
    return t.dim() == d ? 1 : t.size(0);
  }
  void check_tail(const char* name, const char* arg, const Tensor& t,
                  const std::vector<int64_t>& tail) const {
    const int64_t more = t.dim() - static_cast<int64_t>(tail.size());
    bool fits = more == 0 || more == 1;
    for (size_t a = 0; fits && a < tail.size(); ++a) fits = t.size(more + static_cast<int64_t>(a)) == tail[a];
    STD_TORCH_CHECK(fits, name, ": the shape of ", arg, " does not match offsets and grid");
  }
};

std::vector<int64_t> with_batch(bool batched, int64_t batch, const std::vector<int64_t>& tail) {
  std::vector<int64_t> size;
  if (batched) size.push_back(batch);
  size.insert(size.end(), tail.begin(), tail.end());
  return size;
}

// f(u0, u1) over ranges of 0 <= u < units; `work` multiply-adds altogether.
template <class F>
void parallel_units(int64_t units, int64_t work, const F& f) {
  const int64_t parts =
      work < 2 * kGrain ? 1 : std::min<int64_t>({units, work / kGrain, torch::stable::get_num_threads()});
  if (parts <= 1) return f(0, units);
  torch::stable::parallel_for(0, parts, 1,
                              [&](int64_t c0, int64_t c1) { f(units * c0 / parts, units * c1 / parts); });
}

// f(b, block0, block1) for every b of the batch and every block: blocks of several b in parallel or, where b
// adds to what b - 1 wrote, only those of one.
template <class F>
void parallel_batch(const StencilView& S, int64_t batch, bool adds_up, const F& f) {
  const int64_t blocks = S.blocks(), work = S.points() * (S.count + 1) * batch;
  if (adds_up)
    return parallel_units(blocks, work, [&](int64_t b0, int64_t b1) {
      for (int64_t b = 0; b < batch; ++b) f(b, b0, b1);
    });
  parallel_units(blocks * batch, work, [&](int64_t u0, int64_t u1) {
    for (int64_t u = u0; u < u1;) {
      const int64_t b = u / blocks, end = std::min(u1, (b + 1) * blocks);
      f(b, u - b * blocks, end - b * blocks);
      u = end;
    }
  });
}

template <class F>
void dispatch_dtype(const char* name, const Tensor& t, F f) {
  const ScalarType type = t.scalar_type();
  STD_TORCH_CHECK(type == ScalarType::Float || type == ScalarType::Double, name,
                  ": tensors must be float32 or float64");
  type == ScalarType::Double ? f.template operator()<double>() : f.template operator()<float>();
}

}  // namespace

Tensor stencil(const Tensor& coefficients, const Tensor& x_, const std::vector<int64_t>& offsets,
               const std::vector<int64_t>& periodic, bool transpose, bool sum_batch) {
  const char* name = "stencil";
  const Tensor c = dense(coefficients), x = dense(x_);
  const Stencil stencil(name, x, offsets, periodic, transpose);
  const StencilView& S = stencil.view;
  STD_TORCH_CHECK(c.scalar_type() == x.scalar_type(), name, ": coefficients and x must have one dtype");
  const int64_t c_batch = c.dim() == stencil.d + 2 ? c.size(0) : 1, points = S.points();
  bool constant = points != 1;
  for (int64_t a = 1; constant && a <= stencil.d; ++a) constant = c.dim() >= a && c.size(c.dim() - a) == 1;
  stencil.check_tail(name, "coefficients", c, constant ? stencil.constants : stencil.coefficients);
  const int64_t x_batch = stencil.batch(name, "x", x), batch = broadcast_batch(name, c_batch, x_batch);
  const bool batched = !sum_batch && (c.dim() == stencil.d + 2 || x.dim() == stencil.d + 1);
  const std::vector<int64_t> size = with_batch(batched, batch, stencil.field);
  if (batch == 0 || points == 0 || S.count == 0) return new_zeros(x, size);
  Tensor y = new_empty(x, size);
  const Coefficients kind = constant    ? Coefficients::constant
                            : transpose ? Coefficients::of_neighbour
                                        : Coefficients::variable;
  dispatch_dtype(name, x, [&]<class T>() {
    const int64_t c_step = c_batch == 1 ? 0 : S.count * (constant ? 1 : points);
    const int64_t x_step = x_batch == 1 ? 0 : points, y_step = sum_batch ? 0 : points;
    parallel_batch(S, batch, sum_batch, [&](int64_t b, int64_t b0, int64_t b1) {
      kernels().get<T, int32_t>().stencil(S, kind, b0, b1, data<T>(c) + b * c_step, data<T>(x) + b * x_step,
                                          mutable_data<T>(y) + b * y_step, sum_batch && b > 0);
    });
  });
  return y;
}

Tensor stencil_products(const Tensor& u_, const Tensor& w_, const std::vector<int64_t>& offsets,
                        const std::vector<int64_t>& periodic, bool constant, bool sum_batch) {
  const char* name = "stencil_products";
  const Tensor u = dense(u_), w = dense(w_);
  const Stencil stencil(name, u, offsets, periodic, false);
  const StencilView& S = stencil.view;
  STD_TORCH_CHECK(u.scalar_type() == w.scalar_type(), name, ": u and w must have one dtype");
  const int64_t u_batch = stencil.batch(name, "u", u), w_batch = stencil.batch(name, "w", w);
  const int64_t batch = broadcast_batch(name, u_batch, w_batch), points = S.points();
  const bool batched = !sum_batch && (u.dim() == stencil.d + 1 || w.dim() == stencil.d + 1);
  const std::vector<int64_t> size =
      with_batch(batched, batch, constant ? stencil.constants : stencil.coefficients);
  if (batch == 0 || points == 0 || S.count == 0) return new_zeros(u, size);
  Tensor q = new_empty(u, size);
  const int64_t u_step = u_batch == 1 ? 0 : points, w_step = w_batch == 1 ? 0 : points;
  dispatch_dtype(name, u, [&]<class T>() {
    const auto& table = kernels().get<T, int32_t>();
    if (!constant) {
      const int64_t q_step = sum_batch ? 0 : S.count * points;
      return parallel_batch(S, batch, sum_batch, [&](int64_t b, int64_t b0, int64_t b1) {
        table.stencil_products(S, b0, b1, data<T>(u) + b * u_step, data<T>(w) + b * w_step,
                               mutable_data<T>(q) + b * q_step, sum_batch && b > 0);
      });
    }
    // Sums of the blocks, added up in order: the same bits for any number of threads.
    const int64_t blocks = S.blocks(), step = blocks * S.count;
    std::vector<T> partial(batch * step);
    parallel_batch(S, batch, false, [&](int64_t b, int64_t b0, int64_t b1) {
      table.stencil_correlation(S, b0, b1, data<T>(u) + b * u_step, data<T>(w) + b * w_step,
                                partial.data() + b * step);
    });
    const int64_t results = batched ? batch : 1, terms = batch / results * blocks;
    for (int64_t r = 0; r < results; ++r)
      for (int64_t k = 0; k < S.count; ++k) {
        T sum = 0;
        for (int64_t t = 0; t < terms; ++t) sum += partial[(r * terms + t) * S.count + k];
        mutable_data<T>(q)[r * S.count + k] = sum;
      }
  });
  return q;
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) {
  m.impl("stencil", TORCH_BOX(&learnsolve::stencil));
  m.impl("stencil_products", TORCH_BOX(&learnsolve::stencil_products));
}
