// A stencil as tensors and lists of numbers describe it, for kernels on any device.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/views.h"
#include "ops/tensors.h"

namespace learnsolve {

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

inline std::vector<int64_t> with_batch(bool batched, int64_t batch, const std::vector<int64_t>& tail) {
  std::vector<int64_t> size;
  if (batched) size.push_back(batch);
  size.insert(size.end(), tail.begin(), tail.end());
  return size;
}

// A call of `stencil`: shapes, steps from one member of the batch to the next (0: shared), and what kind of
// coefficients it has.
struct StencilCall {
  Stencil shapes;
  Coefficients kind;
  int64_t batch, c_step, x_step, y_step;
  std::vector<int64_t> size;  // of the result

  StencilCall(const char* name, const Tensor& c, const Tensor& x, const std::vector<int64_t>& offsets,
              const std::vector<int64_t>& periodic, bool transpose, bool sum_batch)
      : shapes(name, x, offsets, periodic, transpose) {
    STD_TORCH_CHECK(c.scalar_type() == x.scalar_type(), name, ": coefficients and x must have one dtype");
    const int64_t d = shapes.d, points = shapes.view.points();
    const int64_t c_batch = c.dim() == d + 2 ? c.size(0) : 1;
    bool same = points != 1;
    for (int64_t a = 1; same && a <= d; ++a) same = c.dim() >= a && c.size(c.dim() - a) == 1;
    shapes.check_tail(name, "coefficients", c, same ? shapes.constants : shapes.coefficients);
    kind = same ? Coefficients::constant : transpose ? Coefficients::of_neighbor : Coefficients::variable;
    const int64_t x_batch = shapes.batch(name, "x", x);
    batch = broadcast_batch(name, c_batch, x_batch);
    c_step = c_batch == 1 ? 0 : shapes.view.count * (same ? 1 : points);
    x_step = x_batch == 1 ? 0 : points;
    y_step = sum_batch ? 0 : points;
    size = with_batch(!sum_batch && (c.dim() == d + 2 || x.dim() == d + 1), batch, shapes.field);
  }
  bool constant() const { return kind == Coefficients::constant; }
  bool adds_up() const { return y_step == 0 && batch > 1; }
  bool nothing() const { return batch == 0 || shapes.view.points() == 0 || shapes.view.count == 0; }
};

// The same of `stencil_products`.
struct StencilProductsCall {
  Stencil shapes;
  bool batched;  // is the result?
  int64_t batch, u_step, w_step, q_step;
  std::vector<int64_t> size;

  StencilProductsCall(const char* name, const Tensor& u, const Tensor& w, const std::vector<int64_t>& offsets,
                      const std::vector<int64_t>& periodic, bool constant, bool sum_batch)
      : shapes(name, u, offsets, periodic, false) {
    STD_TORCH_CHECK(u.scalar_type() == w.scalar_type(), name, ": u and w must have one dtype");
    const int64_t d = shapes.d, points = shapes.view.points();
    const int64_t u_batch = shapes.batch(name, "u", u), w_batch = shapes.batch(name, "w", w);
    batch = broadcast_batch(name, u_batch, w_batch);
    batched = !sum_batch && (u.dim() == d + 1 || w.dim() == d + 1);
    u_step = u_batch == 1 ? 0 : points;
    w_step = w_batch == 1 ? 0 : points;
    q_step = sum_batch ? 0 : shapes.view.count * (constant ? 1 : points);
    size = with_batch(batched, batch, constant ? shapes.constants : shapes.coefficients);
  }
  bool adds_up() const { return q_step == 0 && batch > 1; }
  bool nothing() const { return batch == 0 || shapes.view.points() == 0 || shapes.view.count == 0; }
};

}  // namespace learnsolve
