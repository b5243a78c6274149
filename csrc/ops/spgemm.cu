// csr_spgemm and its gradients for CUDA tensors: sums of products of an entry of one operand and one of
// another, as a plan lists them. That is the product of a structure with a vector: its rows are the entries
// of the result, its entries the products, perm and idx their factors.
#include "ops/products.cuh"
#include "ops/sparse_products.h"

namespace learnsolve {
namespace {

Tensor contraction(const char* name, const std::vector<Tensor>& plan, int64_t nnz, const BatchOperand& u,
                   const BatchOperand& v, bool sum_batch) {
  const DeviceStructure S(name, u.tensor, plan[7], plan[8], plan[9], plan[10]);
  STD_TORCH_CHECK(S.rows() == nnz, name, ": a plan must list the products of each entry of the result");
  const Operands o(u, v, name, sum_batch);
  if (o.batch == 0) return new_zeros(u.tensor, o.size(nnz));
  Tensor out = new_empty(u.tensor, o.size(nnz));
  dispatch(name, out, S.idx, [&]<class T, class I>() {
    spmm_into<T, I>(S, out,
                    {data<T>(o.u.tensor), data<T>(o.v.tensor), nullptr, mutable_data<T>(out), nullptr,
                     o.u.step, o.v.step, 0, o.step(nnz), 0},
                    1, o.batch);
  });
  return out;
}

// The entries of A, B and C, and an operand of each.
struct Entries {
  const char* name;
  const std::vector<Tensor>& plan;
  const Tensor& like;
  int64_t a = listed(name, "a plan", plan, 11)[1].numel(), b = plan[4].numel(), c = plan[6].numel();

  BatchOperand of(const char* arg, const Tensor& t, int64_t size) const { return {name, arg, t, size, like}; }
};

}  // namespace

Tensor csr_spgemm_cuda(const std::vector<Tensor>& plan, bool, int64_t, const Tensor& a, const Tensor& b,
                       bool sum_batch) {
  const Entries n{"csr_spgemm", plan, a};
  return contraction(n.name, plan, n.c, n.of("a", a, n.a), n.of("b", b, n.b), sum_batch);
}

Tensor csr_spgemm_left_cuda(const std::vector<Tensor>& plan, bool, int64_t, const Tensor& g, const Tensor& b,
                            bool sum_batch) {
  const Entries n{"csr_spgemm_left", plan, g};
  return contraction(n.name, plan, n.a, n.of("b", b, n.b), n.of("g", g, n.c), sum_batch);
}

Tensor csr_spgemm_right_cuda(const std::vector<Tensor>& plan, bool, const Tensor& a, const Tensor& g,
                             bool sum_batch) {
  const Entries n{"csr_spgemm_right", plan, a};
  return contraction(n.name, plan, n.b, n.of("a", a, n.a), n.of("g", g, n.c), sum_batch);
}

}  // namespace learnsolve

LS_OPERATORS(m) {
  m.impl("csr_spgemm", TORCH_BOX(&learnsolve::csr_spgemm_cuda));
  m.impl("csr_spgemm_left", TORCH_BOX(&learnsolve::csr_spgemm_left_cuda));
  m.impl("csr_spgemm_right", TORCH_BOX(&learnsolve::csr_spgemm_right_cuda));
}
