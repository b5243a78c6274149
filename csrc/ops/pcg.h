// Operands of preconditioned conjugate gradients and of their adjoint, and the sizes of their results, on
// every device.
#pragma once

#include <tuple>

#include "kernels/views.h"
#include "ops/tensors.h"

namespace learnsolve {

// Place `at` of a list, and a list without it: none.
inline std::optional<Tensor> listed_at(const std::vector<Tensor>& list, size_t at) {
  return at < list.size() ? std::optional<Tensor>(dense(list[at])) : std::nullopt;
}

struct PcgSizes {
  int64_t values_step, m_step, batch, n, k;
  Preconditioning kind;
  std::optional<Tensor> m;  // the numbers of M

  template <class Structure>
  PcgSizes(const char* name, const Structure& S, const Tensor& values, int64_t kind_,
           const std::vector<Tensor>& M, const Tensor& b)
      : m(listed_at(M, 0)) {
    check_dense(name, "b", b, values);
    check_values(name, values, S.nnz());
    STD_TORCH_CHECK(kind_ >= 0 && kind_ <= 3, name, ": kind must be 0 ... 3, got ", kind_);
    kind = static_cast<Preconditioning>(kind_);
    const Dense d(b);
    batch = d.batch, n = d.n, k = d.k;
    STD_TORCH_CHECK(n == S.rows(), name, ": b must have ", S.rows(), " rows, got ", n);
    STD_TORCH_CHECK(values.dim() == 1 || (b.dim() == 3 && values.size(0) == batch), name,
                    ": with values (B, nnz), b must be (B, n, k)");
    values_step = values.dim() == 2 ? S.nnz() : 0;
    constexpr size_t lengths[] = {0, 1, 9, 17};
    STD_TORCH_CHECK(M.size() == lengths[kind_], name, ": M must hold ", lengths[kind_], " tensors for kind ",
                    kind_, ", got ", M.size());
    m_step = 0;
    if (!m) return;
    check_device(name, values, {&*m});
    STD_TORCH_CHECK(m->scalar_type() == values.scalar_type(), name, ": m and values must have one dtype");
    STD_TORCH_CHECK(m->dim() == 1 || (m->dim() == 2 && b.dim() == 3 && m->size(0) == batch), name,
                    ": m must be one vector, or (B, ...) with b (B, n, k)");
    if (m->dim() == 2) m_step = m->size(1);
    STD_TORCH_CHECK(kind != Preconditioning::diagonal || m->size(m->dim() - 1) == n, name,
                    ": a diagonal must have ", n, " entries");
  }
  int64_t nk() const { return n * k; }
  // Multiply-adds of a product.
  template <class Structure>
  int64_t work(const Structure& S) const {
    return (S.nnz() + n) * k;
  }
};

// What csr_pcg reads beside the structures; `state`: p and carry, or nothing to begin.
struct PcgTensors {
  Tensor values;
  std::optional<Tensor> x;
  Tensor r;
  std::optional<Tensor> p, carry, target;

  PcgTensors(const char* name, const Tensor& values_, const std::optional<Tensor>& x_, const Tensor& r_,
             const std::vector<Tensor>& state, const std::optional<Tensor>& target_)
      : values(dense(values_)),
        x(dense(x_)),
        r(dense(r_)),
        p(listed_at(state, 0)),
        carry(listed_at(state, 1)),
        target(dense(target_)) {
    check_device(name, values, {&r});
    for (const auto* t : {&x, &p, &carry, &target})
      if (*t) check_device(name, values, {&**t});
  }
};

using PcgResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// Sizes of these, for a start that fits.
struct PcgResultSizes {
  bool begins;             // or continues from x, r = b, p and carry
  int64_t counted, saved;  // norms; iterates that are kept
  Size vector, norms, carry, scalars, trajectory;

  PcgResultSizes(const char* name, const PcgSizes& p, const PcgTensors& in, int64_t first, int64_t iterations,
                 bool store)
      : begins(!in.p),
        counted(iterations + begins),
        saved(store ? iterations : 0),
        vector(sizes_of(in.r)),
        norms(rows_like(in.r, {counted})),
        carry({p.batch, kCarry, p.k}),
        scalars({p.batch, iterations, kScalars, p.k}),
        trajectory({p.batch, saved, p.n, p.k}) {
    STD_TORCH_CHECK(iterations >= 0 && first >= 0 && !(begins && first > 0), name,
                    ": iterations must not be negative, and begin with number 0, got ", iterations, " from ",
                    first);
    const auto check = [&](const std::optional<Tensor>& t, int64_t numel, const char* rule) {
      STD_TORCH_CHECK(!t || (t->scalar_type() == in.values.scalar_type() && t->numel() == numel), name, rule);
    };
    check(in.x, in.r.numel(), ": x and p must have the shape and dtype of b");
    check(in.p, in.r.numel(), ": x and p must have the shape and dtype of b");
    check(in.carry, p.batch * kCarry * p.k, ": to go on takes x, p and carry");
    check(in.target, p.batch * p.k, ": target must have one number a column");
    STD_TORCH_CHECK(begins || (in.x && in.carry), name, ": to go on takes x, p and carry");
  }
};

// The structures of a preconditioner that is made of a factor L, checked: for CPU and CUDA operators.

// M holds the values of L, the structure of L, and for a product that of L^T; for triangular solves the lower
// triangle and its transpose, each ptr, idx, perm, blocks, order, levels. An empty perm: none.
template <class Structure, class Triangle>
struct FactorStructures {
  // place: what structures of a device take after their name.
  template <class... Place>
  FactorStructures(const char* name, const PcgSizes& p, const std::vector<Tensor>& M, const Tensor& idx,
                   const Place&... place) {
    if (M.size() < 2) return;
    const auto part = [&](size_t from, size_t count) {
      return std::vector<Tensor>(M.begin() + from, M.begin() + from + count);
    };
    rows.emplace(name, place..., part(1, 4));
    STD_TORCH_CHECK(rows->rows() == p.n && rows->nnz() == p.m->size(p.m->dim() - 1) &&
                        rows->idx.scalar_type() == idx.scalar_type(),
                    name, ": the factor must have ", p.n, " rows, m its values, and the index type of A");
    if (p.kind == Preconditioning::triangular) {
      lower.emplace(name, place..., part(5, 6), false, false);
      upper.emplace(name, place..., part(11, 6), true, false);
      STD_TORCH_CHECK(lower->rows() == p.n && upper->rows() == p.n &&
                          (lower->perm ? lower->entries() <= rows->nnz() : lower->entries() == rows->nnz()) &&
                          upper->entries() == lower->entries() && (upper->perm || upper->entries() == 0) &&
                          lower->idx.scalar_type() == idx.scalar_type() &&
                          upper->idx.scalar_type() == idx.scalar_type(),
                      name, ": the triangles must be those of the factor");
      width = p.n;
    } else {
      columns.emplace(name, place..., part(5, 4));
      STD_TORCH_CHECK(columns->nnz() == rows->nnz() && columns->idx.scalar_type() == idx.scalar_type() &&
                          (columns->perm || columns->nnz() == 0),
                      name, ": both structures must hold the same entries");
      width = columns->rows();
    }
  }
  std::optional<Structure> rows, columns;
  std::optional<Triangle> lower, upper;
  int64_t width = 0;  // columns of L
};

// Operands and results of the adjoint of preconditioned conjugate gradients, for CPU and CUDA operators.

// What csr_pcg_backward reads beside the structures, in the order of its lists: `forward` is what the call
// returned and, if it continued others, the p before; `sums` is what the calls for later iterations returned.
struct PcgAdjointTensors {
  Tensor values;
  std::optional<Tensor> x0;
  Tensor residuals, directions, last, scalars, norms;
  std::optional<Tensor> before, gx, gnorms, rbar, pbar, bars, ga, gm;

  PcgAdjointTensors(const char* name, const Tensor& values_, const std::optional<Tensor>& x0_,
                    const std::vector<Tensor>& forward, const std::optional<Tensor>& gx_,
                    const std::optional<Tensor>& gnorms_, const std::vector<Tensor>& sums,
                    const std::vector<int64_t>& needs)
      : values(dense(values_)), x0(dense(x0_)), gx(dense(gx_)), gnorms(dense(gnorms_)) {
    STD_TORCH_CHECK(needs.size() == 3, name, ": needs must say whether values, m and x0 need a gradient");
    STD_TORCH_CHECK(forward.size() == 5 || forward.size() == 6, name,
                    ": forward must hold 5 tensors, and the p before where the call went on");
    STD_TORCH_CHECK(sums.empty() || sums.size() == 5, name, ": sums must hold 0 or 5 tensors");
    residuals = dense(forward[0]), directions = dense(forward[1]), last = dense(forward[2]);
    scalars = dense(forward[3]), norms = dense(forward[4]), before = listed_at(forward, 5);
    rbar = listed_at(sums, 0), pbar = listed_at(sums, 1), bars = listed_at(sums, 2);
    if (needs[0]) ga = listed_at(sums, 3);
    if (needs[1]) gm = listed_at(sums, 4);
    check_device(name, values, {&residuals, &directions, &last, &scalars, &norms});
    for (const auto* t : {&x0, &before, &gx, &gnorms, &rbar, &pbar, &bars, &ga, &gm})
      if (*t) check_device(name, values, {&**t});
  }
};

struct PcgAdjointSizes {
  int64_t count, counted;  // iterations, norms
  bool gives_values, gives_m, gives_x0;
  Size vector, bars, values, m, x0;  // of results

  template <class Structure>
  PcgAdjointSizes(const char* name, const Structure& S, const Structure& St, const PcgSizes& p,
                  const PcgAdjointTensors& in, const std::vector<int64_t>& needs)
      : gives_values(needs[0]),
        gives_m(needs[1] && p.m),
        gives_x0(needs[2] && !in.before),
        vector(sizes_of(in.last)),
        bars({p.batch, kBars, p.k}),
        values(gives_values ? sizes_of(in.values) : Size{0}),
        m(gives_m ? sizes_of(*p.m) : Size{0}),
        x0(gives_x0 ? vector : Size{0}) {
    check_transpose(name, S, St);
    STD_TORCH_CHECK(St.perm || St.nnz() == 0, name, ": the structure of the transpose must have perm");
    STD_TORCH_CHECK(in.scalars.dim() == 4, name, ": scalars must be (B, iterations, 3, k)");
    count = in.scalars.size(1), counted = count + (in.before ? 0 : 1);
    const int64_t all = p.batch * p.nk();
    const auto check = [&](const char* what, const std::optional<Tensor>& t, int64_t numel) {
      check_of_forward(name, what, t, in.values, numel);
    };
    check("residuals", in.residuals, count * all);
    check("directions", in.directions, count * all);
    check("scalars", in.scalars, p.batch * count * kScalars * p.k);
    check("norms", in.norms, p.batch * counted * p.k);
    check("gnorms", in.gnorms, in.norms.numel());
    check("bars", in.bars, p.batch * kBars * p.k);
    for (const auto* t : {&in.before, &in.gx, &in.rbar, &in.pbar, &in.x0}) check("a vector", *t, all);
    check("ga", in.ga, in.values.numel());
    check("gm", in.gm, p.m ? p.m->numel() : 0);
  }
};

}  // namespace learnsolve
