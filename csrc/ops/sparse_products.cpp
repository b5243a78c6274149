// Sparse times sparse and its two gradients, over a plan, without one, or at first; the sum of two matrices.
#include "ops/sparse_products.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <optional>
#include <vector>

#include "analysis/sparse_products.h"
#include "kernels/views.h"
#include "ops/host.h"

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

// The first product of two patterns: C's pattern and values in one pass. It is not an operator, since only
// the pass itself tells how large its results are: a function for learnsolve/ops/sparse_products.py.

namespace {

// The rows of one part of C, which begins with its own first entry.
template <class T, class I>
class FusedRows {
 public:
  // grid: null, or the factors, many rows of which repeat the one before.
  FusedRows(const ProductView<I>& P, const analysis::FactorPair<I>* grid, int64_t cols, const T* a,
            const T* b, I* c_ptr, I* c_idx, T* c)
      : P_(P),
        grid_(grid),
        cols_(cols),
        a_(a),
        b_(b),
        c_ptr_(c_ptr),
        c_idx_(c_idx),
        c_(c),
        place_(cols, I(-1)) {
    P_.c_ptr = c_ptr, P_.c_idx = c_idx;
  }
  void operator()(int64_t r0, int64_t r1) {
    for (int64_t i = r0, end = 0, last; i < r1; i = last) {
      int64_t row = last = grid_ ? i : r1;  // row + 1, ..., last - 1 repeat this one
      for (; row < r1; row = last) {
        for (last = row + 1; last < r1 && grid_->shifted(last);) ++last;
        if (last - row > analysis::kShortestRun) break;
      }
      end = rows(i, row, end);
      if (row == r1) break;
      const int64_t begin = end;
      end = rows(row, row + 1, begin);
      end = end - begin > analysis::kLongestRow ? rows(row + 1, last, end) : repeat(row, last, begin, end);
    }
  }

 private:
  static constexpr int64_t kLanes = 16;  // a multiple of those of every vector

  int64_t rows(int64_t i, int64_t r1, int64_t end) {
    while (i < r1) {
      const int64_t first = i;
      i = kernels().get<T, I>().spgemm_fused(P_, i, r1, end, a_, b_, place_.data(), c_ptr_, c_idx_, c_);
      if (i == r1) return c_ptr_[r1];
      const int64_t begin = i == first ? end : int64_t{c_ptr_[i]};
      end = c_ptr_[++i];
      if (!sort_) sort_.emplace(cols_);
      values_.assign(c_ + begin, c_ + end);
      (*sort_)(c_idx_ + begin, c_idx_ + end);
      for (int64_t t = begin; t < end; ++t) c_[t] = values_[place_[c_idx_[t]] - begin];
    }
    return end;
  }

  // Those that repeat `row`: the uniform blocks of the other passes, without positions for all of them.
  int64_t repeat(int64_t row, int64_t last, int64_t begin, int64_t end) {
    const int64_t length = end - begin;
    for (int64_t t = begin; t < end; ++t) place_[c_idx_[t]] = static_cast<I>(t);
    offsets_.clear();
    for (int64_t p = P_.a_ptr[row]; p < P_.a_ptr[row + 1]; ++p)
      for (int64_t k = P_.a_idx[p], q = P_.b_ptr[k]; q < P_.b_ptr[k + 1]; ++q)
        offsets_.push_back(static_cast<int32_t>(place_[P_.b_idx[q]] - begin));
    for (int64_t i = row + 1, n; i < last; i += n, end += n * length) {
      n = last - i < kLanes ? last - i : (last - i) / kLanes * kLanes;
      for (int64_t t = end; t < end + n * length; ++t) c_idx_[t] = c_idx_[t - length] + 1;
      positions_.clear();
      for (int64_t r = 0; r < n; ++r) {
        c_ptr_[i + r + 1] = static_cast<I>(end + (r + 1) * length);
        if (r > 0 && n >= kLanes) continue;  // the kernel reads only those of the first row
        for (const int32_t o : offsets_) positions_.push_back(static_cast<int32_t>(end + r * length) + o);
      }
      P_.positions = positions_.data();
      kernels().get<T, I>().spgemm_rows(P_, i, i + n, 0, true, a_, b_, c_, nullptr, false);
    }
    return end;
  }

  ProductView<I> P_;
  const analysis::FactorPair<I>* grid_;
  int64_t cols_;
  const T *a_, *b_;
  I *c_ptr_, *c_idx_;
  T* c_;
  std::vector<I> place_;
  std::optional<analysis::ColumnSorter> sort_;
  std::vector<T> values_;
  std::vector<int32_t> offsets_, positions_;
};

// Does every second one of some rows repeat the row before?
template <class I>
bool repeats_often(const I* ptr, int64_t rows, const I* idx) {
  int64_t found = 0, looks = 0;
  for (int64_t i = 0; i + 1 < rows; i += std::max<int64_t>(1, rows / 64), ++looks)
    found += analysis::repeats(ptr, idx, i);
  return 2 * found > looks;
}

// Parts of about equal numbers of products, each in its place among them; then together.
template <class T, class I>
void fused(const ProductView<I>& P, int64_t rows, int64_t inner, int64_t cols, int64_t products, const T* a,
           const T* b, I* c_ptr, I* c_idx, T* c) {
  constexpr int64_t kPart = int64_t{1} << 16;
  c_ptr[0] = 0;
  const int64_t parts = std::clamp<int64_t>(products / std::max(kPart, 4 * cols), 1, threads_here());
  const bool grid = repeats_often(P.a_ptr, rows, P.a_idx) && repeats_often(P.b_ptr, inner, P.b_idx);
  if (parts == 1 && !grid) return FusedRows<T, I>(P, nullptr, cols, a, b, c_ptr, c_idx, c)(0, rows);
  const analysis::FactorPair<I> F(P.a_ptr, rows, P.a_idx, P.b_ptr, inner, P.b_idx, cols);
  const std::vector<int64_t> first = analysis::even_rows(F.before.data(), rows, parts);
  std::vector<int64_t> entries(parts + 1, 0);
  std::atomic<bool> memory = true;
  parallel_for(0, parts, 1, [&](int64_t k0, int64_t k1) {
    for (int64_t k = k0; k < k1; ++k) {
      const int64_t at = F.before[first[k]];
      try {
        FusedRows<T, I>(P, grid ? &F : nullptr, cols, a, b, c_ptr, c_idx + at, c + at)(first[k],
                                                                                       first[k + 1]);
      } catch (const std::bad_alloc&) {
        memory = false;
      }
    }
  });
  if (!memory) throw std::bad_alloc();
  for (int64_t k = 0; k < parts; ++k) {
    const int64_t at = F.before[first[k]], count = first[k] < first[k + 1] ? int64_t{c_ptr[first[k + 1]]} : 0;
    std::memmove(c_idx + entries[k], c_idx + at, count * sizeof(I));
    std::memmove(c + entries[k], c + at, count * sizeof(T));
    for (int64_t i = first[k]; i < first[k + 1]; ++i) c_ptr[i + 1] += static_cast<I>(entries[k]);
    entries[k + 1] = entries[k] + count;
  }
}

template <class T, class I>
void fused_arrays(int64_t rows, int64_t inner, int64_t cols, int64_t products, void** arrays) {
  const auto index = [&](int i) { return static_cast<I*>(arrays[i]); };
  const auto values = [&](int i) { return static_cast<T*>(arrays[i]); };
  const ProductView<I> P{index(0), index(1), nullptr, index(2), index(3),
                         nullptr,  nullptr,  nullptr, nullptr,  false};
  fused(P, rows, inner, cols, products, values(4), values(5), index(6), index(7), values(8));
}

}  // namespace

namespace {

struct UnionPlan {
  const char* name;
  Tensor codes, starts;
  int64_t nnz;  // of the union

  UnionPlan(const char* name_, const Tensor& codes_, const Tensor& starts_, int64_t nnz_, const Tensor& like)
      : name(name_), codes(dense(codes_)), starts(dense(starts_)), nnz(nnz_) {
    STD_TORCH_CHECK(nnz >= 0, name, ": nnz must not be negative");
    check_device(name, like, {&codes, &starts});
    STD_TORCH_CHECK(codes.scalar_type() == ScalarType::Byte && codes.numel() == (nnz + 3) / 4, name,
                    ": codes must be uint8, one for four of the ", nnz, " entries");
    STD_TORCH_CHECK(starts.dim() == 2 && starts.size(0) == union_chunks(nnz) + 1 && starts.size(1) == 2, name,
                    ": starts must be (number of chunks + 1, 2)");
  }
};

// The plan ends with the numbers of entries of A and B.
void check_ends(const UnionPlan& plan, int64_t na, int64_t nb) {
  const ScalarType index = plan.starts.scalar_type();
  STD_TORCH_CHECK(index == ScalarType::Int || index == ScalarType::Long, plan.name,
                  ": starts must be int32 or int64");
  const int64_t last = 2 * union_chunks(plan.nnz);
  STD_TORCH_CHECK(Structure::entry(plan.starts, last) == na && Structure::entry(plan.starts, last + 1) == nb,
                  plan.name, ": starts must end with the numbers of entries of A and B");
  if (!contents_checked) return;
  const Entries starts(plan.starts);
  const uint8_t* codes = data<uint8_t>(plan.codes);
  int64_t in_a = 0, in_b = 0;
  for (int64_t i = 0; i <= plan.nnz; ++i) {
    if (const int64_t c = (i + kUnionChunk - 1) / kUnionChunk; i == plan.nnz || i % kUnionChunk == 0)
      STD_TORCH_CHECK(starts[2 * c] == in_a && starts[2 * c + 1] == in_b, plan.name, ": starts of chunk ", c,
                      " must be the entries that codes hold before it, ", in_a, " and ", in_b);
    if (i == plan.nnz) break;
    const int code = codes[i / 4] >> (i % 4);
    in_a += code & 1, in_b += code >> 4 & 1;
  }
}

template <class F>
void parallel_chunks(int64_t nnz, const F& f) {
  const int64_t chunks = union_chunks(nnz);
  if (chunks <= kGrain / kUnionChunk) return f(0, chunks);
  parallel_for(0, chunks, kGrain / kUnionChunk, f);
}

}  // namespace

Tensor csr_add(const Tensor& codes, const Tensor& starts, int64_t nnz, const Tensor& a, const Tensor& b,
               double alpha, double beta) {
  const char* name = "csr_add";
  const Addends o(name, a, b);
  const UnionPlan plan(name, codes, starts, nnz, a);
  check_ends(plan, o.na, o.nb);
  Tensor c = new_empty(a, o.size(nnz));
  dispatch(name, a, plan.starts, [&]<class T, class I>() {
    for (int64_t s = 0; s < o.batch; ++s)
      parallel_chunks(nnz, [&](int64_t c0, int64_t c1) {
        kernels().get<T, I>().add(data<uint8_t>(plan.codes), data<I>(plan.starts), c0, c1, nnz,
                                  data<T>(o.a) + s * o.na, o.na, data<T>(o.b) + s * o.nb, o.nb,
                                  static_cast<T>(alpha), static_cast<T>(beta), mutable_data<T>(c) + s * nnz);
      });
  });
  return c;
}

std::tuple<Tensor, Tensor> csr_add_backward(const Tensor& codes, const Tensor& starts, int64_t na, int64_t nb,
                                            const Tensor& g, double alpha, double beta, bool need_a,
                                            bool need_b) {
  const char* name = "csr_add_backward";
  const UnionCotangent o(name, g, na, nb, need_a, need_b);
  const UnionPlan plan(name, codes, starts, o.nnz, g);
  check_ends(plan, na, nb);
  Tensor ga = new_empty(g, o.a_size), gb = new_empty(g, o.b_size);
  if (!need_a && !need_b) return {ga, gb};
  dispatch(name, g, plan.starts, [&]<class T, class I>() {
    for (int64_t s = 0; s < o.batch; ++s)
      parallel_chunks(o.nnz, [&](int64_t c0, int64_t c1) {
        kernels().get<T, I>().add_backward(
            data<uint8_t>(plan.codes), data<I>(plan.starts), c0, c1, o.nnz, data<T>(o.g) + s * o.nnz,
            static_cast<T>(alpha), static_cast<T>(beta), need_a ? mutable_data<T>(ga) + s * na : nullptr,
            need_b ? mutable_data<T>(gb) + s * nb : nullptr);
      });
  });
  return {ga, gb};
}

}  // namespace learnsolve

// arrays: a_ptr, a_idx, b_ptr, b_idx, the values of A and of B; c_ptr (rows + 1), c_idx and the values of C,
// both with room for an entry per product. False if memory is missing.
extern "C" __attribute__((visibility("default"))) bool learnsolve_spgemm_fused(bool doubles, bool wide,
                                                                               int64_t rows, int64_t inner,
                                                                               int64_t cols, int64_t products,
                                                                               void** arrays) try {
  using namespace learnsolve;
  const auto run = doubles ? (wide ? fused_arrays<double, int64_t> : fused_arrays<double, int32_t>)
                           : (wide ? fused_arrays<float, int64_t> : fused_arrays<float, int32_t>);
  run(rows, inner, cols, products, arrays);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) {
  m.impl("csr_spgemm", TORCH_BOX(&learnsolve::csr_spgemm));
  m.impl("csr_spgemm_left", TORCH_BOX(&learnsolve::csr_spgemm_left));
  m.impl("csr_spgemm_right", TORCH_BOX(&learnsolve::csr_spgemm_right));
  m.impl("csr_spgemm_backward", TORCH_BOX(&learnsolve::csr_spgemm_backward));
  m.impl("csr_add", TORCH_BOX(&learnsolve::csr_add));
  m.impl("csr_add_backward", TORCH_BOX(&learnsolve::csr_add_backward));
}
