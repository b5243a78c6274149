// Sparse times dense and its fused backward, the sampled product, and sums of columns.
#include "ops/products.h"

#include "ops/host.h"

namespace learnsolve {

Tensor csr_spmm(const Tensor& ptr, const Tensor& idx, const Tensor& perm, const Tensor& blocks,
                const Tensor& values, const Tensor& x, bool sum_batch, bool conjugate) {
  const Structure S("csr_spmm", ptr, idx, perm, blocks);
  const Spmm o(S, values, x, sum_batch);
  S.check_columns(o.x_rows);
  if (o.batch == 0) return new_zeros(values, o.size);
  Tensor y = new_empty(values, o.size);
  const int64_t parts = is_complex(values) ? 2 : 1;
  dispatch<true>(S.name, values, S.idx, [&]<class T, class I>() {
    const auto& table = kernels().get<T, I>();
    const RowBlocks<I> row_blocks = S.row_blocks<I>();
    for (int64_t b = 0; b < o.batch; ++b) {
      const CsrView<T, I> A = S.view<T, I>(data<T>(o.values) + b * o.a_step * parts);
      const T* xb = data<T>(o.x) + b * o.x_step * parts;
      T* yb = mutable_data<T>(y) + b * o.y_step * parts;
      parallel_blocks<I>(S, o.k * parts, [&](int64_t b0, int64_t b1) {
        if (parts == 1) return table.spmm(A, row_blocks, b0, b1, xb, o.k, yb, sum_batch && b > 0);
        table.complex_spmm(A, row_blocks, b0, b1, xb, o.k, yb, sum_batch && b > 0, conjugate);
      });
    }
  });
  return y;
}

std::tuple<Tensor, Tensor> csr_spmm_backward(const Tensor& ptr, const Tensor& idx, const Tensor& perm,
                                             const Tensor& blocks, const Tensor& crow, const Tensor& col,
                                             const Tensor& row_blocks, const Tensor& values, const Tensor& g,
                                             const Tensor& x) {
  const char* name = "csr_spmm_backward";
  const Structure S(name, ptr, idx, perm, blocks), A(name, crow, col, std::nullopt, row_blocks);
  STD_TORCH_CHECK(A.nnz() == S.nnz(), name, ": both structures must hold the same entries");
  const SpmmBackward o(S, A.rows(), values, g, x);
  S.check_columns(o.g_rows), A.check_columns(S.perm ? S.rows() : o.g_rows);
  const Size values_size = sizes_of(values), x_size = sizes_of(x);
  if (o.nothing()) return {new_zeros(values, values_size), new_zeros(values, x_size)};
  Tensor ga = new_empty(values, values_size), gx = new_empty(values, x_size);
  dispatch(name, values, S.idx, [&]<class T, class I>() {
    for (int64_t b = 0; b < o.batch; ++b)
      both_gradients<T, I>(A, S, data<T>(o.values) + b * o.a_step, data<T>(o.g) + b * o.g_step,
                           data<T>(o.x) + b * o.x_step, o.k, mutable_data<T>(gx) + b * o.x_step,
                           mutable_data<T>(ga) + b * o.a_step, b > 0 && o.x_step == 0,
                           b > 0 && o.a_step == 0);
  });
  return {ga, gx};
}

std::tuple<Tensor, Tensor> csr_spmv_scatter_backward(const Tensor& ptr, const Tensor& idx,
                                                     const Tensor& row_blocks, const Tensor& values_,
                                                     const Tensor& g_, const Tensor& x_, bool need_values,
                                                     bool need_x) {
  const char* name = "csr_spmv_scatter_backward";
  const Structure A(name, ptr, idx, std::nullopt, row_blocks);
  const Tensor values = dense(values_), g = dense(g_), x = dense(x_);
  check_values(name, values, A.nnz());
  check_dense(name, "g", g, values);
  check_dense(name, "x", x, values);
  STD_TORCH_CHECK(values.dim() == 1 && g.dim() == 1 && x.dim() == 1 && g.numel() == A.rows(), name,
                  ": values, g and x must be vectors, g with ", A.rows(), " rows");
  check_device(name, values, {&A.idx, &g, &x});
  A.check_columns(x.numel());
  // A number of parts that does not depend on the number of threads, each with a vector of its own, added
  // up in order: the same bits for any number of threads.
  constexpr int64_t parts = 8;
  const int64_t n = x.numel();
  const std::vector<int64_t> values_size{need_values ? A.nnz() : 0}, x_size{need_x ? n : 0},
      sums_size{need_x ? parts * n : 0};
  Tensor ga = new_empty(values, values_size), gx = new_empty(values, x_size),
         sums = new_zeros(values, sums_size);
  dispatch(name, values, A.idx, [&]<class T, class I>() {
    const CsrView<T, I> view = A.view<T, I>(data<T>(values));
    const RowBlocks<I> blocks = A.row_blocks<I>();
    parallel_for(0, parts, 1, [&](int64_t c0, int64_t c1) {
      for (int64_t c = c0; c < c1; ++c) {
        const int64_t b0 = block_bound<I>(A, c, parts), b1 = block_bound<I>(A, c + 1, parts);
        kernels().get<T, I>().scatter_backward(view, blocks.table[2 * b0], blocks.table[2 * b1], data<T>(g),
                                               data<T>(x), need_x ? mutable_data<T>(sums) + c * n : nullptr,
                                               need_values ? mutable_data<T>(ga) : nullptr);
      }
    });
    if (need_x)
      parallel_for(0, n, kGrain, [&](int64_t j0, int64_t j1) {
        for (int64_t j = j0; j < j1; ++j) {
          T sum = 0;
          for (int64_t c = 0; c < parts; ++c) sum += data<T>(sums)[c * n + j];
          mutable_data<T>(gx)[j] = sum;
        }
      });
  });
  return {ga, gx};
}

Tensor csr_sddmm(const Tensor& ptr, const Tensor& idx, const Tensor& blocks, const Tensor& u, const Tensor& v,
                 bool sum_batch, int64_t conjugate) {
  const Structure S("csr_sddmm", ptr, idx, std::nullopt, blocks);
  const Sddmm o(S, u, v, sum_batch);
  S.check_columns(o.v_rows);
  STD_TORCH_CHECK(0 <= conjugate && conjugate <= 2, S.name, ": conjugate must be 0, 1 or 2, got ", conjugate);
  if (o.batch == 0) return new_zeros(u, o.size);
  Tensor out = new_empty(u, o.size);
  const int64_t parts = is_complex(u) ? 2 : 1;
  dispatch<true>(S.name, u, S.idx, [&]<class T, class I>() {
    const auto& table = kernels().get<T, I>();
    const I *ptr = data<I>(S.ptr), *idx = data<I>(S.idx);
    const RowBlocks<I> row_blocks = S.row_blocks<I>();
    for (int64_t b = 0; b < o.batch; ++b) {
      const T *ub = data<T>(o.u) + b * o.u_step * parts, *vb = data<T>(o.v) + b * o.v_step * parts;
      T* to = mutable_data<T>(out) + b * o.out_step * parts;
      const bool add = sum_batch && b > 0;
      parallel_blocks<I>(S, o.k * parts, [&](int64_t b0, int64_t b1) {
        if (parts == 1) return table.sddmm(ptr, idx, row_blocks, b0, b1, ub, vb, o.k, to, add);
        table.complex_sddmm(ptr, idx, row_blocks, b0, b1, ub, vb, o.k, to, add, conjugate);
      });
    }
  });
  return out;
}

// Sums of columns with the same bits for any number of threads: of chunks of rows, whose number depends on
// the size alone, added up in order, in double.

namespace {

constexpr int64_t kChunk = 4096;  // numbers: both operands lie in the first cache

struct RowChunks {
  int64_t rows, size, count;
  RowChunks(int64_t n, int64_t k)
      : rows(n), size(std::max<int64_t>(kChunk / k, 1)), count(std::max<int64_t>((n + size - 1) / size, 1)) {}
  int64_t begin(int64_t c) const { return c * size; }
  int64_t length(int64_t c) const { return std::min(size, rows - begin(c)); }
};

// Is it one number everywhere (expanded)? Sums are products with ones, which then take no room but a chunk's.
bool is_constant(const Tensor& t) {
  for (int64_t i = 0; i < t.dim(); ++i)
    if (t.size(i) > 1 && t.stride(i) != 0) return false;
  return t.numel() > kChunk;
}

}  // namespace

Tensor column_dots(const Tensor& u, const Tensor& v, bool sum_batch) {
  const char* name = "column_dots";
  const bool constant =
      sizes_of(u) == sizes_of(v) && u.scalar_type() == v.scalar_type() && !is_complex(v) && is_constant(v);
  const Columns o(name, u, constant ? u : v, false);
  const int64_t parts = is_complex(v) ? 2 : 1, k = o.k * parts;  // real numbers of a row
  if (k == 0 || o.n == 0 || o.batch == 0) return new_zeros(o.u, o.sums(sum_batch));
  Tensor out = new_empty(o.u, o.sums(sum_batch));
  const RowChunks chunks(o.n, k);
  dispatch_dtype<true>(name, o.u, [&]<class T>() {
    const auto& table = kernels().get<T, int32_t>();
    const auto kernel = parts == 2 ? table.complex_column_dots : table.column_dots;
    T* totals = mutable_data<T>(out);
    const T* from_u = data<T>(o.u);
    const std::vector<T> numbers(constant ? chunks.size * k : 0, constant ? *data<T>(v) : T(0));
    const auto v_at = [&](int64_t b, int64_t at) {
      return constant ? numbers.data() : data<T>(o.v) + b * o.v_step * parts + at;
    };
    if (o.batch == 1 && chunks.count == 1) return kernel(from_u, v_at(0, 0), o.n, o.k, totals);
    std::vector<T> sums(o.batch * chunks.count * k);
    parallel_for(0, o.batch * chunks.count, std::max<int64_t>(kGrain / (chunks.size * k), 1),
                 [&](int64_t i0, int64_t i1) {
                   for (int64_t i = i0; i < i1; ++i) {
                     const int64_t b = i / chunks.count, c = i % chunks.count, o0 = chunks.begin(c) * k;
                     kernel(from_u + b * o.u_step * parts + o0, v_at(b, o0), chunks.length(c), o.k,
                            sums.data() + i * k);
                   }
                 });
    const int64_t results = out.numel() * parts / k, terms = o.batch * chunks.count / results;
    for (int64_t r = 0; r < results; ++r)
      for (int64_t c = 0; c < k; ++c) {
        double total = 0;
        for (int64_t t = 0; t < terms; ++t) total += sums[(r * terms + t) * k + c];
        totals[r * k + c] = static_cast<T>(total);
      }
  });
  return out;
}

Tensor column_combination(const Tensor& a, const Tensor& v) {
  const char* name = "column_combination";
  const Columns o(name, a, v, true);
  const Size size{o.n, o.k};
  if (o.batch == 0 || o.n * o.k == 0) return new_zeros(o.v, size);
  Tensor out = new_empty(o.v, size);
  const int64_t parts = is_complex(v) ? 2 : 1, k = o.k * parts;
  const RowChunks chunks(o.n, k);
  dispatch_dtype<true>(name, o.v, [&]<class T>() {
    const auto& table = kernels().get<T, int32_t>();
    const auto kernel = parts == 2 ? table.complex_column_combination : table.column_combination;
    parallel_for(0, chunks.count, std::max<int64_t>(kGrain / (chunks.size * k), 1),
                 [&](int64_t c0, int64_t c1) {
                   for (int64_t c = c0; c < c1; ++c)
                     for (int64_t b = 0; b < o.batch; ++b)
                       kernel(data<T>(o.u) + b * o.u_step * parts,
                              data<T>(o.v) + b * o.v_step * parts + chunks.begin(c) * k, chunks.length(c),
                              o.k, mutable_data<T>(out) + chunks.begin(c) * k, b > 0);
                 });
  });
  return out;
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) {
  m.impl("csr_spmm", TORCH_BOX(&learnsolve::csr_spmm));
  m.impl("csr_spmm_backward", TORCH_BOX(&learnsolve::csr_spmm_backward));
  m.impl("csr_spmv_scatter_backward", TORCH_BOX(&learnsolve::csr_spmv_scatter_backward));
  m.impl("csr_sddmm", TORCH_BOX(&learnsolve::csr_sddmm));
  m.impl("column_dots", TORCH_BOX(&learnsolve::column_dots));
  m.impl("column_combination", TORCH_BOX(&learnsolve::column_combination));
}
