// csr_add and csr_add_backward for CUDA tensors.
#include "kernels/sparse_products.cuh"
#include "ops/device.cuh"
#include "ops/sparse_products.h"

namespace learnsolve {
namespace {

Tensor checked(const char* name, const Tensor& places_, int64_t nnz, const Tensor& like) {
  const Tensor places = dense(places_);
  STD_TORCH_CHECK(places.dim() == 2 && places.size(0) == 2 && places.size(1) == nnz, name,
                  ": on a CUDA device codes must hold the places in A and in B of the ", nnz,
                  " entries, (2, nnz)");
  check_index(name, places);
  check_device(name, like, {&places});
  return places;
}

// f(stream, grid, places)
template <class I, class F>
void launch(const Tensor& places, int64_t na, int64_t nb, int64_t batch, const Tensor& like, const F& f) {
  const int64_t nnz = places.size(1);
  if (nnz == 0 || batch == 0) return;
  const OnDevice device(like);
  f(device.stream, dim3(cuda::blocks_for(nnz, cuda::kThreads), cuda::blocks_aside(batch)),
    cuda::UnionPlaces<I>{data<I>(places), data<I>(places) + nnz, nnz, na, nb, batch});
  STD_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

Tensor csr_add_cuda(const Tensor& codes, const Tensor&, int64_t nnz, const Tensor& a, const Tensor& b,
                    double alpha, double beta) {
  const char* name = "csr_add";
  const Addends o(name, a, b);
  const Tensor places = checked(name, codes, nnz, a);
  Tensor c = new_empty(a, o.size(nnz));
  dispatch(name, a, places, [&]<class T, class I>() {
    launch<I>(places, o.na, o.nb, o.batch, a, [&](auto stream, dim3 grid, const auto& P) {
      LS_LAUNCH(
          grid, cuda::kThreads, stream,
          (P, data<T>(o.a), data<T>(o.b), static_cast<T>(alpha), static_cast<T>(beta), mutable_data<T>(c)),
          cuda::union_sum_kernel<T, I>);
    });
  });
  return c;
}

std::tuple<Tensor, Tensor> csr_add_backward_cuda(const Tensor& codes, const Tensor&, int64_t na, int64_t nb,
                                                 const Tensor& g, double alpha, double beta, bool need_a,
                                                 bool need_b) {
  const char* name = "csr_add_backward";
  const UnionCotangent o(name, g, na, nb, need_a, need_b);
  const Tensor places = checked(name, codes, o.nnz, g);
  Tensor ga = new_empty(g, o.a_size), gb = new_empty(g, o.b_size);
  if (!need_a && !need_b) return {ga, gb};
  dispatch(name, g, places, [&]<class T, class I>() {
    launch<I>(places, na, nb, o.batch, g, [&](auto stream, dim3 grid, const auto& P) {
      LS_LAUNCH(grid, cuda::kThreads, stream,
                (P, data<T>(o.g), static_cast<T>(alpha), static_cast<T>(beta),
                 need_a ? mutable_data<T>(ga) : nullptr, need_b ? mutable_data<T>(gb) : nullptr),
                cuda::union_split_kernel<T, I>);
    });
  });
  return {ga, gb};
}

}  // namespace learnsolve

LS_OPERATORS(m) {
  m.impl("csr_add", TORCH_BOX(&learnsolve::csr_add_cuda));
  m.impl("csr_add_backward", TORCH_BOX(&learnsolve::csr_add_backward_cuda));
}
