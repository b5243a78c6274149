// Sparse times sparse and its two gradients, over a plan or without one.
#include "ops/check.h"

namespace learnsolve {

namespace {

struct SparseArrays {
  Tensor ptr, idx;
  SparseArrays(const char* name, const Tensor& ptr_, const Tensor& idx_)
      : ptr(dense(ptr_)), idx(dense(idx_)) {
    STD_TORCH_CHECK(ptr.numel() > 0 && ptr.scalar_type() == idx.scalar_type(), name,
                    ": every pattern needs ptr with rows + 1 entries and idx of the same type");
    STD_TORCH_CHECK(Structure::entry(ptr, rows()) == nnz(), name, ": ptr must end at nnz");
  }
  int64_t rows() const { return ptr.numel() - 1; }
  int64_t nnz() const { return idx.numel(); }
};

// Values (nnz) or (B, nnz) of one of the matrices.
struct Values {
  Tensor tensor;
  int64_t batch, nnz;
  bool batched;
  Values(const char* name, const char* arg, const Tensor& t, int64_t nnz_, const Tensor& like)
      : tensor(dense(t)), nnz(nnz_) {
    STD_TORCH_CHECK((t.dim() == 1 || t.dim() == 2) && t.size(t.dim() - 1) == nnz, name, ": ", arg,
                    " must be (nnz) or (B, nnz) with nnz = ", nnz);
    STD_TORCH_CHECK(t.scalar_type() == like.scalar_type(), name, ": all values must have one dtype");
    batched = t.dim() == 2;
    batch = batched ? t.size(0) : 1;
  }
  template <class T>
  const T* at(int64_t b) const {
    return data<T>(tensor) + (batch == 1 ? 0 : b * nnz);
  }
};

// The patterns of C = A B. For a pass over columns, A's is that of its transpose and has perm.
struct Product {
  const char* name;
  SparseArrays A, B, C;
  std::optional<Tensor> perm, positions, starts;
  Tensor blocks;
  bool masked;

  Product(const char* name_, const Tensor& a_ptr, const Tensor& a_idx, const std::optional<Tensor>& perm_,
          const Tensor& b_ptr, const Tensor& b_idx, const Tensor& c_ptr, const Tensor& c_idx,
          const std::optional<Tensor>& positions_, const std::optional<Tensor>& starts_,
          const Tensor& blocks_, bool masked_)
      : name(name_),
        A(name, a_ptr, a_idx),
        B(name, b_ptr, b_idx),
        C(name, c_ptr, c_idx),
        blocks(dense(blocks_)),
        masked(masked_) {
    if (perm_) perm = dense(*perm_);
    if (positions_) positions = dense(*positions_);
    if (starts_) starts = dense(*starts_);
    const ScalarType type = A.idx.scalar_type();
    STD_TORCH_CHECK(B.idx.scalar_type() == type && C.idx.scalar_type() == type &&
                        (!perm || (perm->scalar_type() == type && perm->numel() == A.nnz())),
                    name, ": all patterns must have one index type, and perm the entries of A");
    for (const std::optional<Tensor>& t : {positions, starts})
      STD_TORCH_CHECK(!t || t->scalar_type() == ScalarType::Int, name, ": a plan must be int32");
    STD_TORCH_CHECK(
        (perm ? !starts == !positions && (!starts || starts->numel() == A.nnz()) : A.rows() == C.rows()),
        name, ": starts must have the entries of A, and C the rows of A");
    STD_TORCH_CHECK(blocks.dim() == 2 && blocks.size(0) >= 1 && blocks.size(1) == 3 &&
                        blocks.scalar_type() == ScalarType::Long,
                    name, ": blocks must be (number of blocks + 1, 3), int64");
    STD_TORCH_CHECK(table()[0] == 0 && table()[3 * n_blocks()] == A.rows(), name,
                    ": blocks must cover all rows");
    STD_TORCH_CHECK(!positions || perm || positions->numel() == table()[3 * n_blocks() + 1], name,
                    ": positions must have an entry a product");
  }
  const int64_t* table() const { return data<int64_t>(blocks); }
  int64_t n_blocks() const { return blocks.size(0) - 1; }

  template <class I>
  ProductView<I> view() const {
    return {data<I>(A.ptr), data<I>(A.idx),  perm ? data<I>(*perm) : nullptr,
            data<I>(B.ptr), data<I>(B.idx),  data<I>(C.ptr),
            data<I>(C.idx), plan(positions), plan(starts),
            masked};
  }
  // Null if there is none: the tensor of a plan without products has no data either.
  static const int32_t* plan(const std::optional<Tensor>& t) {
    static const int32_t none = 0;
    if (!t) return nullptr;
    return t->numel() > 0 ? data<int32_t>(*t) : &none;
  }
};

// f(block) for all blocks, those of one thread in order. `scratch` places of -1 go with each thread's range.
template <class I, class F>
void for_blocks(const Product& P, int64_t batch, int64_t scratch, const F& f) {
  const auto range = [&](int64_t b0, int64_t b1) {
    std::vector<I> marker(scratch, I(-1));
    for (int64_t block = b0; block < b1; ++block) f(block, marker.data());
  };
  // A block holds about 8192 products and entries: fewer than three are not worth a second thread.
  if (P.n_blocks() * batch < 6 || P.n_blocks() < 2) return range(0, P.n_blocks());
  torch::stable::parallel_for(0, P.n_blocks(), 1, range);
}

struct Batch {
  int64_t size;
  bool batched;
  Batch(const char* name, const Values& u, const Values& v)
      : size(broadcast_batch(name, u.batch, v.batch)), batched(u.batched || v.batched) {}
  std::vector<int64_t> shape(int64_t nnz, bool sum) const {
    return batched && !sum ? std::vector<int64_t>{size, nnz} : std::vector<int64_t>{nnz};
  }
};

// The contractions over rows of A: with b and `u` = a to C, or with b and `u` = g to A's gradient.
Tensor over_rows(const Product& P, const Values& u, const Values& b, bool left, int64_t columns, bool sum) {
  const Batch batch(P.name, u, b);
  const int64_t nnz = left ? P.A.nnz() : P.C.nnz();
  const std::vector<int64_t> shape = batch.shape(nnz, sum);
  if (batch.size == 0) return new_zeros(u.tensor, shape);
  Tensor out = new_empty(u.tensor, shape);
  dispatch(P.name, u.tensor, P.A.idx, [&]<class T, class I>() {
    const auto& table = kernels().get<T, I>();
    const ProductView<I> view = P.view<I>();
    for_blocks<I>(P, batch.size, P.positions ? 0 : columns, [&](int64_t block, I* marker) {
      const int64_t* rows = P.table() + 3 * block;
      for (int64_t s = 0; s < batch.size; ++s) {
        T* at = mutable_data<T>(out) + (sum ? 0 : s * nnz);
        if (left)
          table.spgemm_left(view, rows[0], rows[3], rows[1], u.at<T>(s), b.at<T>(s), at, marker,
                            sum && s > 0);
        else
          table.spgemm_rows(view, rows[0], rows[3], rows[1], rows[2] != 0, u.at<T>(s), b.at<T>(s), at, marker,
                            sum && s > 0);
      }
    });
  });
  return out;
}

}  // namespace

Tensor csr_spgemm(const Tensor& a_ptr, const Tensor& a_idx, const Tensor& b_ptr, const Tensor& b_idx,
                  const Tensor& c_ptr, const Tensor& c_idx, const std::optional<Tensor>& positions,
                  const Tensor& blocks, bool masked, int64_t columns, const Tensor& a, const Tensor& b,
                  bool sum_batch) {
  const Product P("csr_spgemm", a_ptr, a_idx, std::nullopt, b_ptr, b_idx, c_ptr, c_idx, positions,
                  std::nullopt, blocks, masked);
  return over_rows(P, Values(P.name, "a", a, P.A.nnz(), a), Values(P.name, "b", b, P.B.nnz(), a), false,
                   columns, sum_batch);
}

Tensor csr_spgemm_left(const Tensor& a_ptr, const Tensor& a_idx, const Tensor& b_ptr, const Tensor& b_idx,
                       const Tensor& c_ptr, const Tensor& c_idx, const std::optional<Tensor>& positions,
                       const Tensor& blocks, bool masked, int64_t columns, const Tensor& g, const Tensor& b,
                       bool sum_batch) {
  const Product P("csr_spgemm_left", a_ptr, a_idx, std::nullopt, b_ptr, b_idx, c_ptr, c_idx, positions,
                  std::nullopt, blocks, masked);
  return over_rows(P, Values(P.name, "g", g, P.C.nnz(), g), Values(P.name, "b", b, P.B.nnz(), g), true,
                   columns, sum_batch);
}

Tensor csr_spgemm_right(const Tensor& t_ptr, const Tensor& t_idx, const Tensor& perm, const Tensor& b_ptr,
                        const Tensor& b_idx, const Tensor& c_ptr, const Tensor& c_idx,
                        const std::optional<Tensor>& positions, const std::optional<Tensor>& starts,
                        const Tensor& blocks, bool masked, const Tensor& a_, const Tensor& g_,
                        bool sum_batch) {
  const Product P("csr_spgemm_right", t_ptr, t_idx, perm, b_ptr, b_idx, c_ptr, c_idx, positions, starts,
                  blocks, masked);
  const Values a(P.name, "a", a_, P.A.nnz(), a_), g(P.name, "g", g_, P.C.nnz(), a_);
  const Batch batch(P.name, a, g);
  const int64_t nnz = P.B.nnz();
  const std::vector<int64_t> shape = batch.shape(nnz, sum_batch);
  if (batch.size == 0) return new_zeros(a_, shape);
  Tensor out = new_empty(a_, shape);
  dispatch(P.name, a_, P.A.idx, [&]<class T, class I>() {
    const ProductView<I> view = P.view<I>();
    for_blocks<I>(P, batch.size, 0, [&](int64_t block, I*) {
      const int64_t* rows = P.table() + 3 * block;
      for (int64_t s = 0; s < batch.size; ++s)
        kernels().get<T, I>().spgemm_columns(
            view, rows[0], rows[3], rows[2] != 0, a.at<T>(s), nullptr, g.at<T>(s), nullptr,
            mutable_data<T>(out) + (sum_batch ? 0 : s * nnz), false, sum_batch && s > 0);
    });
  });
  return out;
}

std::tuple<Tensor, Tensor> csr_spgemm_backward(const Tensor& t_ptr, const Tensor& t_idx, const Tensor& perm,
                                               const Tensor& b_ptr, const Tensor& b_idx, const Tensor& c_ptr,
                                               const Tensor& c_idx, const std::optional<Tensor>& positions,
                                               const std::optional<Tensor>& starts, const Tensor& blocks,
                                               bool masked, const Tensor& a_, const Tensor& b_,
                                               const Tensor& g_) {
  const Product P("csr_spgemm_backward", t_ptr, t_idx, perm, b_ptr, b_idx, c_ptr, c_idx, positions, starts,
                  blocks, masked);
  const Values a(P.name, "a", a_, P.A.nnz(), a_), b(P.name, "b", b_, P.B.nnz(), a_),
      g(P.name, "g", g_, P.C.nnz(), a_);
  const int64_t batch = broadcast_batch(P.name, g.batch, broadcast_batch(P.name, a.batch, b.batch));
  const Size a_shape = sizes_of(a_), b_shape = sizes_of(b_);
  if (batch == 0) return {new_zeros(a_, a_shape), new_zeros(b_, b_shape)};
  Tensor ga = new_empty(a_, a_shape), gb = new_empty(b_, b_shape);
  dispatch(P.name, a_, P.A.idx, [&]<class T, class I>() {
    const ProductView<I> view = P.view<I>();
    for_blocks<I>(P, batch, 0, [&](int64_t block, I*) {
      const int64_t* rows = P.table() + 3 * block;
      for (int64_t s = 0; s < batch; ++s)
        kernels().get<T, I>().spgemm_columns(view, rows[0], rows[3], rows[2] != 0, a.at<T>(s), b.at<T>(s),
                                             g.at<T>(s), mutable_data<T>(ga) + (a.batch == 1 ? 0 : s * a.nnz),
                                             mutable_data<T>(gb) + (b.batch == 1 ? 0 : s * b.nnz),
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
