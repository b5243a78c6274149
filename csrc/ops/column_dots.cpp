// Sums of columns with the same bits for any number of threads: of chunks of rows, whose number depends on
// the size alone, added up in order, in double.
#include "ops/column_dots.h"

#include "ops/check.h"

namespace learnsolve {
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
  m.impl("column_dots", TORCH_BOX(&learnsolve::column_dots));
  m.impl("column_combination", TORCH_BOX(&learnsolve::column_combination));
}
