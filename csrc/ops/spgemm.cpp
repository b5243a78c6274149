// Sparse times sparse and its two gradients, over a plan or without one.
#include "ops/spgemm.h"

#include "analysis/product_blocks.h"
#include "ops/check.h"

namespace learnsolve {
namespace {

struct Product : ProductPlan {
  bool masked;

  Product(const char* name_, const std::vector<Tensor>& list, bool by_columns, bool masked_,
          const Tensor& like)
      : ProductPlan(name_, list, by_columns, like), masked(masked_) {
    STD_TORCH_CHECK(Structure::entry(a_ptr, a_rows()) == a_nnz() &&
                        Structure::entry(b_ptr, b_rows()) == b_nnz() &&
                        Structure::entry(c_ptr, c_ptr.numel() - 1) == c_nnz(),
                    name, ": ptr must end at nnz");
    STD_TORCH_CHECK(blocks.dim() == 2 && blocks.size(0) >= 1 && blocks.size(1) == 3, name,
                    ": blocks must be (number of blocks + 1, 3)");
    STD_TORCH_CHECK(table()[0] == 0 && table()[3 * n_blocks()] == a_rows(), name,
                    ": blocks must cover all rows");
    STD_TORCH_CHECK(!positions || positions->numel() == table()[3 * n_blocks() + 1], name,
                    ": positions must have an entry a product");
    if (contents_checked) check_contents(by_columns);
  }
  const int64_t* table() const { return data<int64_t>(blocks); }
  int64_t n_blocks() const { return blocks.size(0) - 1; }

  template <class I>
  ProductView<I> view() const {
    return {data<I>(a_ptr),        data<I>(a_idx), data<I>(perm),  data<I>(b_ptr),
            data<I>(b_idx),        data<I>(c_ptr), data<I>(c_idx), data<int32_t>(positions),
            data<int32_t>(starts), masked};
  }

 private:
  void check_contents(bool by_columns) const {
    check_bounds(name, "ptr of A", a_ptr, a_nnz());
    check_bounds(name, "ptr of B", b_ptr, b_nnz());
    check_bounds(name, "ptr of C", c_ptr, c_nnz());
    check_bounds(name, "blocks", blocks, a_rows(), 3);
    check_range(name, "columns of A", a_idx, 0, by_columns ? c_ptr.numel() - 1 : b_rows());
    check_range(name, "perm", perm, 0, a_nnz());
    const Entries ap(a_ptr), ai(a_idx), bp(b_ptr), bi(b_idx), cp(c_ptr), ci(c_idx), at(blocks);
    int64_t f = 0;
    for (int64_t r = 0, block = 0; r < a_rows(); ++r) {
      for (; block < n_blocks() && at[3 * block] <= r; ++block)
        STD_TORCH_CHECK(by_columns || at[3 * block + 1] == f || at[3 * block + 3] == at[3 * block], name,
                        ": block ", block, " must begin with product ", f);
      for (int64_t e = ap[r]; e < ap[r + 1]; ++e) {
        const int64_t i = by_columns ? ai[e] : r, k = by_columns ? r : ai[e], count = bp[k + 1] - bp[k];
        if (by_columns && positions) f = Entries(*starts)[e];
        STD_TORCH_CHECK(!positions || (f >= 0 && f + count <= positions->numel()), name, ": product ", f,
                        " has no position");
        for (int64_t q = bp[k]; positions && q < bp[k + 1]; ++q) {
          const int64_t t = Entries(*positions)[f + q - bp[k]];
          STD_TORCH_CHECK((masked && t == -1) || (t >= cp[i] && t < cp[i + 1] && ci[t] == bi[q]), name,
                          ": product ", f + q - bp[k], " does not belong in place ", t);
        }
        f += count;
      }
    }
    a_idx.scalar_type() == ScalarType::Int ? check_uniform_blocks<int32_t>(by_columns)
                                           : check_uniform_blocks<int64_t>(by_columns);
  }
  template <class I>
  void check_uniform_blocks(bool by_columns) const {
    const ProductView<I> P = view<I>();
    for (int64_t b = 0; positions && b < n_blocks(); ++b) {
      const int64_t *line = table() + 3 * b, last = line[3] - 1;
      if (line[2] == 0 || last < line[0]) continue;
      int64_t f = line[1], length = by_columns ? row_length(P, last) : P.c_ptr[last + 1] - P.c_ptr[last];
      bool same = length <= 128;
      for (int64_t i = line[0]; same && i < last; ++i) {
        if (by_columns) {
          same = i + 1 < last && analysis::columns_repeat(P.a_ptr, P.perm, P.b_ptr, P.positions, P.starts, i);
          if (i + 2 == last) break;
        } else {
          same = analysis::rows_repeat(P.a_ptr, P.a_idx, P.b_ptr, P.c_ptr, P.positions, i, f);
          for (int64_t p = P.a_ptr[i]; p < P.a_ptr[i + 1]; ++p) f += row_length(P, P.a_idx[p]);
        }
      }
      STD_TORCH_CHECK(same, name, ": the rows of block ", b, " are not uniform");
    }
  }
  template <class I>
  static int64_t row_length(const ProductView<I>& P, int64_t k) {
    return P.b_ptr[k + 1] - P.b_ptr[k];
  }
};

// f(block) for all blocks, those of one thread in order. `scratch` places of -1 go with each thread's range.
template <class I, class F>
void for_blocks(const Product& P, int64_t batch, int64_t scratch, const F& f) {
  const auto range = [&](int64_t b0, int64_t b1) {
    std::vector<I> marker(scratch, I(-1));
    for (int64_t block = b0; block < b1; ++block) f(P.table() + 3 * block, marker.data());
  };
  // A block holds about 8192 products and entries: fewer than three are not worth a second thread.
  if (P.n_blocks() * batch < 6 || P.n_blocks() < 2) return range(0, P.n_blocks());
  parallel_for(0, P.n_blocks(), 1, range);
}

// The contractions over rows of A: with b and u = a to C, or with b and u = g to A's gradient.
Tensor over_rows(const Product& P, const char* u_name, const Tensor& u, const Tensor& b, bool left,
                 int64_t columns, bool sum) {
  const int64_t nnz = left ? P.a_nnz() : P.c_nnz();
  const Operands o(BatchOperand(P.name, u_name, u, left ? P.c_nnz() : P.a_nnz(), u),
                   BatchOperand(P.name, "b", b, P.b_nnz(), u), P.name, sum);
  STD_TORCH_CHECK(columns >= 0, P.name, ": columns must not be negative, got ", columns);
  if (!P.positions) {
    check_range(P.name, "columns of B", P.b_idx, 0, columns);
    check_range(P.name, "columns of C", P.c_idx, 0, columns);
  }
  if (o.batch == 0) return new_zeros(u, o.size(nnz));
  Tensor out = new_empty(u, o.size(nnz));
  dispatch(P.name, u, P.a_idx, [&]<class T, class I>() {
    const auto& table = kernels().get<T, I>();
    const ProductView<I> view = P.view<I>();
    for_blocks<I>(P, o.batch, P.positions ? 0 : columns, [&](const int64_t* rows, I* marker) {
      for (int64_t s = 0; s < o.batch; ++s) {
        T* at = mutable_data<T>(out) + s * o.step(nnz);
        if (left)
          table.spgemm_left(view, rows[0], rows[3], rows[1], o.u.at<T>(s), o.v.at<T>(s), at, marker,
                            sum && s > 0);
        else
          table.spgemm_rows(view, rows[0], rows[3], rows[1], rows[2] != 0, o.u.at<T>(s), o.v.at<T>(s), at,
                            marker, sum && s > 0);
      }
    });
  });
  return out;
}

}  // namespace

Tensor csr_spgemm(const std::vector<Tensor>& plan, bool masked, int64_t columns, const Tensor& a,
                  const Tensor& b, bool sum_batch) {
  const Product P("csr_spgemm", plan, false, masked, a);
  return over_rows(P, "a", a, b, false, columns, sum_batch);
}

Tensor csr_spgemm_left(const std::vector<Tensor>& plan, bool masked, int64_t columns, const Tensor& g,
                       const Tensor& b, bool sum_batch) {
  const Product P("csr_spgemm_left", plan, false, masked, g);
  return over_rows(P, "g", g, b, true, columns, sum_batch);
}

Tensor csr_spgemm_right(const std::vector<Tensor>& plan, bool masked, const Tensor& a, const Tensor& g,
                        bool sum_batch) {
  const Product P("csr_spgemm_right", plan, true, masked, a);
  const Operands o(BatchOperand(P.name, "a", a, P.a_nnz(), a), BatchOperand(P.name, "g", g, P.c_nnz(), a),
                   P.name, sum_batch);
  const Size size = o.size(P.b_nnz());
  if (o.batch == 0) return new_zeros(a, size);
  Tensor out = new_empty(a, size);
  dispatch(P.name, a, P.a_idx, [&]<class T, class I>() {
    const ProductView<I> view = P.view<I>();
    for_blocks<I>(P, o.batch, 0, [&](const int64_t* rows, I*) {
      for (int64_t s = 0; s < o.batch; ++s)
        kernels().get<T, I>().spgemm_columns(
            view, rows[0], rows[3], rows[2] != 0, o.u.at<T>(s), nullptr, o.v.at<T>(s), nullptr,
            mutable_data<T>(out) + s * o.step(P.b_nnz()), false, sum_batch && s > 0);
    });
  });
  return out;
}

std::tuple<Tensor, Tensor> csr_spgemm_backward(const std::vector<Tensor>& plan, bool masked, const Tensor& a_,
                                               const Tensor& b_, const Tensor& g_) {
  const Product P("csr_spgemm_backward", plan, true, masked, a_);
  const BatchOperand a(P.name, "a", a_, P.a_nnz(), a_), b(P.name, "b", b_, P.b_nnz(), a_),
      g(P.name, "g", g_, P.c_nnz(), a_);
  const int64_t batch = broadcast_batch(P.name, g.batch, broadcast_batch(P.name, a.batch, b.batch));
  const Size a_size = sizes_of(a_), b_size = sizes_of(b_);
  if (batch == 0) return {new_zeros(a_, a_size), new_zeros(b_, b_size)};
  Tensor ga = new_empty(a_, a_size), gb = new_empty(b_, b_size);
  dispatch(P.name, a_, P.a_idx, [&]<class T, class I>() {
    const ProductView<I> view = P.view<I>();
    for_blocks<I>(P, batch, 0, [&](const int64_t* rows, I*) {
      for (int64_t s = 0; s < batch; ++s)
        kernels().get<T, I>().spgemm_columns(view, rows[0], rows[3], rows[2] != 0, a.at<T>(s), b.at<T>(s),
                                             g.at<T>(s),
                                             mutable_data<T>(ga) + (a.batch == 1 ? 0 : s * P.a_nnz()),
                                             mutable_data<T>(gb) + (b.batch == 1 ? 0 : s * P.b_nnz()),
                                             s > 0 && a.batch == 1, s > 0 && b.batch == 1);
    });
  });
  return {ga, gb};
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) {
  m.impl("csr_spgemm", TORCH_BOX(&learnsolve::csr_spgemm));
  m.impl("csr_spgemm_left", TORCH_BOX(&learnsolve::csr_spgemm_left));
  m.impl("csr_spgemm_right", TORCH_BOX(&learnsolve::csr_spgemm_right));
  m.impl("csr_spgemm_backward", TORCH_BOX(&learnsolve::csr_spgemm_backward));
}
