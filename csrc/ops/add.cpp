// The sum of two matrices on the union of their patterns, and its adjoint.
#include "ops/add.h"

#include "kernels/union_plan.h"
#include "ops/check.h"

namespace learnsolve {
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

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) {
  m.impl("csr_add", TORCH_BOX(&learnsolve::csr_add));
  m.impl("csr_add_backward", TORCH_BOX(&learnsolve::csr_add_backward));
}
