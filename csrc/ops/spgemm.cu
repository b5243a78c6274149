// csr_spgemm and its gradients for CUDA tensors, by the plans of learnsolve/matrix/device.py: for the
// product `positions` is the list of pairs and `blocks` where those of each entry of C begin; for the
// gradient of A `blocks` is where the products of each of its entries begin. Without `positions` the places
// are searched in C, and neither `blocks` nor `starts` is read.
#include <type_traits>

#include "kernels/spgemm.cuh"
#include "ops/device.cuh"
#include "ops/spgemm.h"

namespace learnsolve {
namespace {

using namespace cuda;

template <int Lanes, class T>
LS_KERNEL(kThreads)
pair_sums_kernel(LS_ARGUMENT PairSums<T> P) {
  for_members(P.batch > 1 && P.c.step == 0, P.batch, [&](Members members) {
    for_items<Lanes>(P.entries, [&](const auto& team, int64_t t) { pair_sum(team, P, t, members); });
  });
}

template <int Lanes, class T, class I>
LS_KERNEL(kThreads)
row_sums_kernel(LS_ARGUMENT RowSums<T, I> P) {
  for_members(P.batch > 1 && P.c.step == 0, P.batch, [&](Members members) {
    for_items<Lanes>(P.rows, [&](const auto& team, int64_t i) { row_sums(team, P, i, members); });
  });
}

template <int Lanes, class T, class I, class Places>
LS_KERNEL(kThreads)
left_sums_kernel(LS_ARGUMENT LeftSums<T, I, Places> P) {
  for_members(P.batch > 1 && P.ga.step == 0, P.batch, [&](Members members) {
    for_items<Lanes>(P.entries, [&](const auto& team, int64_t p) { left_sum(team, P, p, members); });
  });
}

template <int Lanes, bool Left, class T, class I, class Places>
LS_KERNEL(kThreads)
column_sums_kernel(LS_ARGUMENT ColumnSums<T, I, Places> P) {
  for_members(P.adds_left || P.adds_right, P.batch, [&](Members members) {
    for_items<Lanes>(P.rows, [&](const auto& team, int64_t k) { column_sums<Left>(team, P, k, members); });
  });
}

// f.template operator()<Lanes>() for sums of about `mean` terms.
template <class F>
void with_lanes(int64_t mean, const F& f) {
  if (mean < 6)
    f.template operator()<2>();
  else if (mean < 32)
    f.template operator()<8>();
  else
    f.template operator()<32>();
}

// The same for passes that search: an additional lane costs less than a search.
template <class F>
void with_searching_lanes(int64_t mean, const F& f) {
  if (mean < 12)
    f.template operator()<8>();
  else
    f.template operator()<32>();
}

template <int Lanes>
dim3 grid_for(int64_t items, bool adds_up, int64_t batch) {
  return dim3(blocks_for(items, kThreads / Lanes), 1, blocks_aside(adds_up ? 1 : batch));
}

int64_t mean_row(const ProductPlan& P) { return P.b_nnz() / std::max<int64_t>(P.b_rows(), 1); }

}  // namespace

Tensor csr_spgemm_cuda(const std::vector<Tensor>& plan, bool, int64_t, const Tensor& a, const Tensor& b,
                       bool sum_batch) {
  const ProductPlan of("csr_spgemm", plan, false, a);
  const int64_t nnz = of.c_nnz();
  const Operands o(BatchOperand(of.name, "a", a, of.a_nnz(), a), BatchOperand(of.name, "b", b, of.b_nnz(), a),
                   of.name, sum_batch);
  if (o.batch == 0 || nnz == 0) return new_zeros(a, o.size(nnz));
  Tensor c = new_empty(a, o.size(nnz));
  const OnDevice device(a);
  dispatch(of.name, a, of.a_idx, [&]<class T, class I>() {
    const BatchOf<T> out{mutable_data<T>(c), o.step(nnz)};
    if (!of.positions) {
      const RowSums<T, I> P{data<I>(of.a_ptr),
                            data<I>(of.a_idx),
                            data<I>(of.b_ptr),
                            data<I>(of.b_idx),
                            data<I>(of.c_ptr),
                            data<I>(of.c_idx),
                            batch_of<T>(o.u),
                            batch_of<T>(o.v),
                            out,
                            of.a_rows(),
                            o.batch};
      with_searching_lanes(mean_row(of), [&]<int Lanes>() {
        LS_LAUNCH(grid_for<Lanes>(P.rows, !o.batched, o.batch), kThreads, device.stream, (P),
                  row_sums_kernel<Lanes, T, I>);
      });
    } else {
      STD_TORCH_CHECK(of.blocks.numel() == nnz + 1, of.name, ": blocks must have an entry for each of C");
      const PairSums<T> P{data<int32_t>(of.positions),
                          data<int64_t>(of.blocks),
                          batch_of<T>(o.u),
                          batch_of<T>(o.v),
                          out,
                          nnz,
                          o.batch};
      with_lanes(of.positions->numel() / 2 / nnz, [&]<int Lanes>() {
        LS_LAUNCH(grid_for<Lanes>(nnz, !o.batched, o.batch), kThreads, device.stream, (P),
                  pair_sums_kernel<Lanes, T>);
      });
    }
    STD_CUDA_CHECK(cudaGetLastError());
  });
  return c;
}

Tensor csr_spgemm_left_cuda(const std::vector<Tensor>& plan, bool, int64_t, const Tensor& g, const Tensor& b,
                            bool sum_batch) {
  const ProductPlan of("csr_spgemm_left", plan, false, g);
  const int64_t nnz = of.a_nnz();
  const Operands o(BatchOperand(of.name, "g", g, of.c_nnz(), g), BatchOperand(of.name, "b", b, of.b_nnz(), g),
                   of.name, sum_batch);
  if (o.batch == 0 || nnz == 0) return new_zeros(g, o.size(nnz));
  Tensor ga = new_empty(g, o.size(nnz));
  const OnDevice device(g);
  dispatch(of.name, g, of.a_idx, [&]<class T, class I>() {
    const auto launch = [&]<int Lanes>(const auto& places) {
      using Places = std::decay_t<decltype(places)>;
      const LeftSums<T, I, Places> P{data<I>(of.a_idx),
                                     data<I>(of.b_ptr),
                                     places,
                                     batch_of<T>(o.u),
                                     batch_of<T>(o.v),
                                     {mutable_data<T>(ga), o.step(nnz)},
                                     nnz,
                                     o.batch};
      LS_LAUNCH(grid_for<Lanes>(nnz, !o.batched, o.batch), kThreads, device.stream, (P),
                left_sums_kernel<Lanes, T, I, Places>);
      STD_CUDA_CHECK(cudaGetLastError());
    };
    if (!of.positions) {
      const SearchedPlaces<I> places{nullptr,           data<I>(of.a_ptr), of.a_rows(),
                                     data<I>(of.b_idx), data<I>(of.c_ptr), data<I>(of.c_idx)};
      return with_searching_lanes(mean_row(of),
                                  [&]<int Lanes>() { launch.template operator()<Lanes>(places); });
    }
    STD_TORCH_CHECK(of.blocks.numel() == nnz + 1, of.name, ": blocks must have an entry for each of A");
    const PlannedPlaces<int64_t> places{data<int32_t>(of.positions), data<int64_t>(of.blocks)};
    with_lanes(of.positions->numel() / nnz, [&]<int Lanes>() { launch.template operator()<Lanes>(places); });
  });
  return ga;
}

namespace {

// The gradient of B into gb and, with Left, that of A into ga; their steps from one member of the batch to
// the next are 0 where a value that the batch shares gets its sum. b is meaningless without Left.
template <bool Left>
void columns(const ProductPlan& of, const Tensor& like, const BatchOperand& a, const BatchOperand& b,
             const BatchOperand& g, int64_t batch, const Tensor& ga, int64_t ga_step, const Tensor& gb,
             int64_t gb_step) {
  const int64_t rows = of.b_rows();
  if (rows <= 0) return;
  const OnDevice device(like);
  dispatch(of.name, like, of.a_idx, [&]<class T, class I>() {
    const auto launch = [&]<int Lanes>(const auto& places) {
      using Places = std::decay_t<decltype(places)>;
      const ColumnSums<T, I, Places> P{data<I>(of.a_ptr),
                                       data<I>(of.perm),
                                       data<I>(of.b_ptr),
                                       places,
                                       batch_of<T>(a),
                                       batch_of<T>(b),
                                       batch_of<T>(g),
                                       {mutable_data<T>(ga), ga_step},
                                       {mutable_data<T>(gb), gb_step},
                                       rows,
                                       batch,
                                       Left && batch > 1 && ga_step == 0,
                                       batch > 1 && gb_step == 0};
      const dim3 grid = grid_for<Lanes>(rows, P.adds_left || P.adds_right, batch);
      LS_LAUNCH(grid, kThreads, device.stream, (P), column_sums_kernel<Lanes, Left, T, I, Places>);
      STD_CUDA_CHECK(cudaGetLastError());
    };
    if (!of.positions) {
      const SearchedPlaces<I> places{data<I>(of.a_idx), nullptr,           0,
                                     data<I>(of.b_idx), data<I>(of.c_ptr), data<I>(of.c_idx)};
      return with_searching_lanes(mean_row(of),
                                  [&]<int Lanes>() { launch.template operator()<Lanes>(places); });
    }
    const PlannedPlaces<int32_t> places{data<int32_t>(of.positions), data<int32_t>(of.starts)};
    with_lanes(mean_row(of), [&]<int Lanes>() { launch.template operator()<Lanes>(places); });
  });
}

}  // namespace

Tensor csr_spgemm_right_cuda(const std::vector<Tensor>& plan, bool, const Tensor& a, const Tensor& g,
                             bool sum_batch) {
  const ProductPlan of("csr_spgemm_right", plan, true, a);
  const int64_t nnz = of.b_nnz();
  const Operands o(BatchOperand(of.name, "a", a, of.a_nnz(), a), BatchOperand(of.name, "g", g, of.c_nnz(), a),
                   of.name, sum_batch);
  if (o.batch == 0) return new_zeros(a, o.size(nnz));
  Tensor gb = new_empty(a, o.size(nnz));
  columns<false>(of, a, o.u, o.u, o.v, o.batch, gb, 0, gb, o.step(nnz));
  return gb;
}

std::tuple<Tensor, Tensor> csr_spgemm_backward_cuda(const std::vector<Tensor>& plan, bool, const Tensor& a_,
                                                    const Tensor& b_, const Tensor& g_) {
  const ProductPlan of("csr_spgemm_backward", plan, true, a_);
  const BatchOperand a(of.name, "a", a_, of.a_nnz(), a_), b(of.name, "b", b_, of.b_nnz(), a_),
      g(of.name, "g", g_, of.c_nnz(), a_);
  const int64_t batch = broadcast_batch(of.name, g.batch, broadcast_batch(of.name, a.batch, b.batch));
  const Size a_size = sizes_of(a_), b_size = sizes_of(b_);
  if (batch == 0) return {new_zeros(a_, a_size), new_zeros(a_, b_size)};
  Tensor ga = new_empty(a_, a_size), gb = new_empty(a_, b_size);
  columns<true>(of, a_, a, b, g, batch, ga, a.batch == 1 ? 0 : of.a_nnz(), gb, b.batch == 1 ? 0 : of.b_nnz());
  return {ga, gb};
}

}  // namespace learnsolve

LS_OPERATORS(m) {
  m.impl("csr_spgemm", TORCH_BOX(&learnsolve::csr_spgemm_cuda));
  m.impl("csr_spgemm_left", TORCH_BOX(&learnsolve::csr_spgemm_left_cuda));
  m.impl("csr_spgemm_right", TORCH_BOX(&learnsolve::csr_spgemm_right_cuda));
  m.impl("csr_spgemm_backward", TORCH_BOX(&learnsolve::csr_spgemm_backward_cuda));
}
