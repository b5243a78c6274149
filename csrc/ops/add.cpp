// The sum of two matrices on the union of their patterns, and its adjoint.
#include "kernels/union_plan.h"
#include "ops/check.h"

namespace learnsolve {
namespace {

struct UnionPlan {
  Tensor codes, starts;

  UnionPlan(const char* name, const Tensor& codes_, const Tensor& starts_, int64_t nnz, int64_t na,
            int64_t nb)
      : codes(dense(codes_)), starts(dense(starts_)) {
    STD_TORCH_CHECK(codes.scalar_type() == ScalarType::Byte && codes.numel() == (nnz + 3) / 4, name,
                    ": codes must be uint8, one for four of the ", nnz, " entries");
    STD_TORCH_CHECK(starts.dim() == 2 && starts.size(0) == union_chunks(nnz) + 1 && starts.size(1) == 2, name,
                    ": starts must be (number of chunks + 1, 2)");
    STD_TORCH_CHECK(starts.scalar_type() == ScalarType::Int || starts.scalar_type() == ScalarType::Long, name,
                    ": starts must be int32 or int64");
    const int64_t last = 2 * union_chunks(nnz);
    STD_TORCH_CHECK(Structure::entry(starts, last) == na && Structure::entry(starts, last + 1) == nb, name,
                    ": starts must end with the numbers of entries of A and B");
  }
};

template <class F>
void parallel_chunks(int64_t nnz, const F& f) {
  const int64_t chunks = union_chunks(nnz);
  if (chunks <= kGrain / kUnionChunk) return f(0, chunks);
  torch::stable::parallel_for(0, chunks, kGrain / kUnionChunk, f);
}

std::vector<int64_t> with_last(const Tensor& t, int64_t n) {
  return t.dim() == 2 ? std::vector<int64_t>{t.size(0), n} : std::vector<int64_t>{n};
}

}  // namespace

Tensor csr_add(const Tensor& codes, const Tensor& starts, int64_t nnz, const Tensor& a_, const Tensor& b_,
               double alpha, double beta) {
  const char* name = "csr_add";
  const Tensor a = dense(a_), b = dense(b_);
  STD_TORCH_CHECK((a.dim() == 1 || a.dim() == 2) && a.dim() == b.dim() &&
                      a.scalar_type() == b.scalar_type() && (a.dim() == 1 || a.size(0) == b.size(0)),
                  name, ": a and b must both be (nnz) or (B, nnz), of one dtype");
  const int64_t na = a.size(a.dim() - 1), nb = b.size(b.dim() - 1), batch = a.dim() == 2 ? a.size(0) : 1;
  STD_TORCH_CHECK(nnz >= 0, name, ": nnz must not be negative");
  const UnionPlan plan(name, codes, starts, nnz, na, nb);
  Tensor c = new_empty(a, with_last(a, nnz));
  dispatch(name, a, plan.starts, [&]<class T, class I>() {
    for (int64_t s = 0; s < batch; ++s)
      parallel_chunks(nnz, [&](int64_t c0, int64_t c1) {
        kernels().get<T, I>().add(data<uint8_t>(plan.codes), data<I>(plan.starts), c0, c1, nnz,
                                  data<T>(a) + s * na, na, data<T>(b) + s * nb, nb, static_cast<T>(alpha),
                                  static_cast<T>(beta), mutable_data<T>(c) + s * nnz);
      });
  });
  return c;
}

std::tuple<Tensor, Tensor> csr_add_backward(const Tensor& codes, const Tensor& starts, int64_t na, int64_t nb,
                                            const Tensor& g_, double alpha, double beta, bool need_a,
                                            bool need_b) {
  const char* name = "csr_add_backward";
  const Tensor g = dense(g_);
  STD_TORCH_CHECK(g.dim() == 1 || g.dim() == 2, name, ": g must be (nnz) or (B, nnz)");
  STD_TORCH_CHECK(na >= 0 && nb >= 0, name, ": na and nb must not be negative");
  const int64_t nnz = g.size(g.dim() - 1), batch = g.dim() == 2 ? g.size(0) : 1;
  const UnionPlan plan(name, codes, starts, nnz, na, nb);
  Tensor ga = new_empty(g, need_a ? with_last(g, na) : std::vector<int64_t>{0});
  Tensor gb = new_empty(g, need_b ? with_last(g, nb) : std::vector<int64_t>{0});
  if (!need_a && !need_b) return {ga, gb};
  dispatch(name, g, plan.starts, [&]<class T, class I>() {
    for (int64_t s = 0; s < batch; ++s)
      parallel_chunks(nnz, [&](int64_t c0, int64_t c1) {
        kernels().get<T, I>().add_backward(data<uint8_t>(plan.codes), data<I>(plan.starts), c0, c1, nnz,
                                           data<T>(g) + s * nnz, static_cast<T>(alpha), static_cast<T>(beta),
                                           need_a ? mutable_data<T>(ga) + s * na : nullptr,
                                           need_b ? mutable_data<T>(gb) + s * nb : nullptr);
      });
  });
  return {ga, gb};
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) {
  m.impl("csr_add", TORCH_BOX(&learnsolve::csr_add));
  m.impl("csr_add_backward", TORCH_BOX(&learnsolve::csr_add_backward));
}
