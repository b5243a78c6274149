// csr_spgemm and its gradients for CUDA tensors, by the plans of learnsolve/_device_analysis.py: for the
// product `positions` is the list of pairs and `blocks` where those of each entry of C begin; for the
// gradient of A `blocks` is where the products of each of its entries begin. Without `positions` the places
// are searched in C, and neither `blocks` nor `starts` is read.
#include <type_traits>

#include "kernels/spgemm.cuh"
#include "ops/device.cuh"

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

// The same for passes that search: whatever a lane more costs, a search costs more.
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

// Values (nnz) or (B, nnz) of one of the matrices.
struct Values {
  Tensor tensor;
  int64_t nnz, batch;
  bool batched;
  Values(const char* name, const char* arg, const Tensor& t, int64_t nnz_, const Tensor& like)
      : tensor(dense(t)), nnz(nnz_), batched(t.dim() == 2) {
    STD_TORCH_CHECK((t.dim() == 1 || batched) && t.size(t.dim() - 1) == nnz, name, ": ", arg,
                    " must be (nnz) or (B, nnz) with nnz = ", nnz);
    STD_TORCH_CHECK(t.scalar_type() == like.scalar_type(), name, ": all values must have one dtype");
    check_device(name, like, {&tensor});
    batch = batched ? t.size(0) : 1;
  }
  template <class T>
  BatchOf<const T> of() const {
    return {data<T>(tensor), batch == 1 ? 0 : nnz};
  }
};

// The index arrays, contiguous and on the device of `values`.
struct Plan {
  std::vector<Tensor> held;
  const char* name;
  const Tensor& like;
  const Tensor& take(const Tensor& t, ScalarType type, int64_t size) {
    STD_TORCH_CHECK(t.scalar_type() == type && (size < 0 || t.numel() == size), name,
                    ": an array of the plan has another type or size than a plan for a CUDA device has");
    held.push_back(dense(t));
    check_device(name, like, {&held.back()});
    return held.back();
  }
  const Tensor& take(const std::optional<Tensor>& t, ScalarType type, int64_t size) {
    STD_TORCH_CHECK(t.has_value(), name, ": positions and starts go together");
    return take(*t, type, size);
  }
  Plan(const char* name_, const Tensor& like_) : name(name_), like(like_) { held.reserve(16); }
  Plan(const Plan&) = delete;
};

std::vector<int64_t> result_size(bool batched, int64_t batch, int64_t nnz) {
  return batched ? std::vector<int64_t>{batch, nnz} : std::vector<int64_t>{nnz};
}

}  // namespace

Tensor csr_spgemm_cuda(const Tensor& a_ptr_, const Tensor& a_idx_, const Tensor& b_ptr_, const Tensor& b_idx_,
                       const Tensor& c_ptr_, const Tensor& c_idx_, const std::optional<Tensor>& positions,
                       const Tensor& blocks, bool, int64_t, const Tensor& a_, const Tensor& b_,
                       bool sum_batch) {
  const char* name = "csr_spgemm";
  const int64_t nnz = c_idx_.numel();
  Plan plan(name, a_);
  const Values a(name, "a", a_, a_idx_.numel(), a_), b(name, "b", b_, b_idx_.numel(), a_);
  const int64_t batch = broadcast_batch(name, a.batch, b.batch);
  const bool batched = !sum_batch && (a.batched || b.batched);
  const std::vector<int64_t> size = result_size(batched, batch, nnz);
  const int64_t step = batched && batch > 1 ? nnz : 0;
  if (batch == 0 || nnz == 0) return new_zeros(a_, size);
  Tensor c = new_empty(a_, size);
  const OnDevice device(a_);
  if (!positions) {
    const ScalarType index = a_idx_.scalar_type();
    const Tensor& c_ptr = plan.take(c_ptr_, index, -1);
    const Tensor& a_ptr = plan.take(a_ptr_, index, c_ptr.numel());
    const Tensor &a_idx = plan.take(a_idx_, index, -1), &b_ptr = plan.take(b_ptr_, index, -1),
                 &b_idx = plan.take(b_idx_, index, -1), &c_idx = plan.take(c_idx_, index, -1);
    const int64_t rows = c_ptr.numel() - 1;
    dispatch(name, a_, c_idx, [&]<class T, class I>() {
      const RowSums<T, I> P{data<I>(a_ptr), data<I>(a_idx), data<I>(b_ptr),
                            data<I>(b_idx), data<I>(c_ptr), data<I>(c_idx),
                            a.of<T>(),      b.of<T>(),      {mutable_data<T>(c), step},
                            rows,           batch};
      with_searching_lanes(b.nnz / std::max<int64_t>(b_ptr.numel() - 1, 1), [&]<int Lanes>() {
        LS_LAUNCH(grid_for<Lanes>(rows, !batched, batch), kThreads, device.stream, (P),
                  row_sums_kernel<Lanes, T, I>);
      });
      STD_CUDA_CHECK(cudaGetLastError());
    });
    return c;
  }
  const Tensor& pairs = plan.take(positions, ScalarType::Int, -1);
  const Tensor& starts = plan.take(blocks, ScalarType::Long, nnz + 1);
  dispatch(name, a_, c_idx_, [&]<class T, class I>() {
    const PairSums<T> P{data<int32_t>(pairs),
                        data<int64_t>(starts),
                        a.of<T>(),
                        b.of<T>(),
                        {mutable_data<T>(c), step},
                        nnz,
                        batch};
    with_lanes(pairs.numel() / 2 / nnz, [&]<int Lanes>() {
      LS_LAUNCH(grid_for<Lanes>(nnz, !batched, batch), kThreads, device.stream, (P),
                pair_sums_kernel<Lanes, T>);
    });
    STD_CUDA_CHECK(cudaGetLastError());
  });
  return c;
}

Tensor csr_spgemm_left_cuda(const Tensor& a_ptr_, const Tensor& a_idx_, const Tensor& b_ptr_,
                            const Tensor& b_idx_, const Tensor& c_ptr_, const Tensor& c_idx_,
                            const std::optional<Tensor>& positions_, const Tensor& blocks, bool, int64_t,
                            const Tensor& g_, const Tensor& b_, bool sum_batch) {
  const char* name = "csr_spgemm_left";
  const int64_t nnz = a_idx_.numel();
  const ScalarType index = a_idx_.scalar_type();
  Plan plan(name, g_);
  const Tensor &a_idx = plan.take(a_idx_, index, nnz), &b_ptr = plan.take(b_ptr_, index, -1);
  const Values g(name, "g", g_, c_idx_.numel(), g_), b(name, "b", b_, b_idx_.numel(), g_);
  const int64_t batch = broadcast_batch(name, g.batch, b.batch);
  const bool batched = !sum_batch && (g.batched || b.batched);
  const std::vector<int64_t> size = result_size(batched, batch, nnz);
  if (batch == 0 || nnz == 0) return new_zeros(g_, size);
  Tensor ga = new_empty(g_, size);
  const OnDevice device(g_);
  const auto launch = [&]<int Lanes, class T, class I>(const auto& places) {
    using Places = std::decay_t<decltype(places)>;
    const LeftSums<T, I, Places> P{data<I>(a_idx),
                                   data<I>(b_ptr),
                                   places,
                                   g.of<T>(),
                                   b.of<T>(),
                                   {mutable_data<T>(ga), batched && batch > 1 ? nnz : 0},
                                   nnz,
                                   batch};
    LS_LAUNCH(grid_for<Lanes>(nnz, !batched, batch), kThreads, device.stream, (P),
              left_sums_kernel<Lanes, T, I, Places>);
    STD_CUDA_CHECK(cudaGetLastError());
  };
  if (!positions_) {
    const Tensor& c_ptr = plan.take(c_ptr_, index, -1);
    const Tensor& a_ptr = plan.take(a_ptr_, index, c_ptr.numel());
    const Tensor &b_idx = plan.take(b_idx_, index, -1), &c_idx = plan.take(c_idx_, index, -1);
    dispatch(name, g_, a_idx, [&]<class T, class I>() {
      const SearchedPlaces<I> places{nullptr,        data<I>(a_ptr), a_ptr.numel() - 1,
                                     data<I>(b_idx), data<I>(c_ptr), data<I>(c_idx)};
      with_searching_lanes(b.nnz / std::max<int64_t>(b_ptr.numel() - 1, 1),
                           [&]<int Lanes>() { launch.template operator()<Lanes, T, I>(places); });
    });
    return ga;
  }
  const Tensor& positions = plan.take(positions_, ScalarType::Int, -1);
  const Tensor& first = plan.take(blocks, ScalarType::Long, nnz + 1);
  dispatch(name, g_, a_idx, [&]<class T, class I>() {
    const PlannedPlaces<int64_t> places{data<int32_t>(positions), data<int64_t>(first)};
    with_lanes(positions.numel() / nnz,
               [&]<int Lanes>() { launch.template operator()<Lanes, T, I>(places); });
  });
  return ga;
}

namespace {

// The gradient of B into gb and, with Left, that of A into ga. A value that the batch shares gets its sum.
template <bool Left>
void columns(const char* name, const Tensor& like, const Tensor& t_ptr_, const Tensor& t_idx_,
             const Tensor& perm_, const Tensor& b_ptr_, const Tensor& b_idx_, const Tensor& c_ptr_,
             const Tensor& c_idx_, const std::optional<Tensor>& positions_,
             const std::optional<Tensor>& starts_, const Values& a, const Values* b, const Values& g,
             int64_t batch, const Tensor& ga, int64_t ga_step, const Tensor& gb, int64_t gb_step) {
  const ScalarType index = t_ptr_.scalar_type();
  Plan plan(name, like);
  const Tensor& b_ptr = plan.take(b_ptr_, index, -1);
  const Tensor& t_ptr = plan.take(t_ptr_, index, b_ptr.numel());
  const Tensor& perm = plan.take(perm_, index, a.nnz);
  const int64_t rows = b_ptr.numel() - 1, nnz = b_idx_.numel();
  if (rows <= 0) return;
  const OnDevice device(like);
  const auto launch = [&]<int Lanes, class T, class I>(const auto& places) {
    using Places = std::decay_t<decltype(places)>;
    const ColumnSums<T, I, Places> P{data<I>(t_ptr),
                                     data<I>(perm),
                                     data<I>(b_ptr),
                                     places,
                                     a.of<T>(),
                                     b ? b->of<T>() : BatchOf<const T>{nullptr, 0},
                                     g.of<T>(),
                                     {Left ? mutable_data<T>(ga) : nullptr, ga_step},
                                     {mutable_data<T>(gb), gb_step},
                                     rows,
                                     batch,
                                     Left && batch > 1 && ga_step == 0,
                                     batch > 1 && gb_step == 0};
    const dim3 grid = grid_for<Lanes>(rows, P.adds_left || P.adds_right, batch);
    LS_LAUNCH(grid, kThreads, device.stream, (P), column_sums_kernel<Lanes, Left, T, I, Places>);
    STD_CUDA_CHECK(cudaGetLastError());
  };
  if (!positions_) {
    const Tensor &t_idx = plan.take(t_idx_, index, a.nnz), &b_idx = plan.take(b_idx_, index, -1),
                 &c_ptr = plan.take(c_ptr_, index, -1), &c_idx = plan.take(c_idx_, index, g.nnz);
    dispatch(name, like, perm, [&]<class T, class I>() {
      const SearchedPlaces<I> places{data<I>(t_idx), nullptr,        0,
                                     data<I>(b_idx), data<I>(c_ptr), data<I>(c_idx)};
      with_searching_lanes(nnz / rows, [&]<int Lanes>() { launch.template operator()<Lanes, T, I>(places); });
    });
    return;
  }
  const Tensor& positions = plan.take(positions_, ScalarType::Int, -1);
  const Tensor& starts = plan.take(starts_, ScalarType::Int, a.nnz);
  dispatch(name, like, perm, [&]<class T, class I>() {
    const PlannedPlaces<int32_t> places{data<int32_t>(positions), data<int32_t>(starts)};
    with_lanes(nnz / rows, [&]<int Lanes>() { launch.template operator()<Lanes, T, I>(places); });
  });
}

}  // namespace

Tensor csr_spgemm_right_cuda(const Tensor& t_ptr, const Tensor& t_idx, const Tensor& perm,
                             const Tensor& b_ptr, const Tensor& b_idx, const Tensor& c_ptr,
                             const Tensor& c_idx, const std::optional<Tensor>& positions,
                             const std::optional<Tensor>& starts, const Tensor&, bool, const Tensor& a_,
                             const Tensor& g_, bool sum_batch) {
  const char* name = "csr_spgemm_right";
  const Values a(name, "a", a_, t_idx.numel(), a_), g(name, "g", g_, c_idx.numel(), a_);
  const int64_t batch = broadcast_batch(name, a.batch, g.batch), nnz = b_idx.numel();
  const bool batched = !sum_batch && (a.batched || g.batched);
  const std::vector<int64_t> size = result_size(batched, batch, nnz);
  if (batch == 0) return new_zeros(a_, size);
  Tensor gb = new_empty(a_, size);
  columns<false>(name, a_, t_ptr, t_idx, perm, b_ptr, b_idx, c_ptr, c_idx, positions, starts, a, nullptr, g,
                 batch, gb, 0, gb, batched && batch > 1 ? nnz : 0);
  return gb;
}

std::tuple<Tensor, Tensor> csr_spgemm_backward_cuda(const Tensor& t_ptr, const Tensor& t_idx,
                                                    const Tensor& perm, const Tensor& b_ptr,
                                                    const Tensor& b_idx, const Tensor& c_ptr,
                                                    const Tensor& c_idx,
                                                    const std::optional<Tensor>& positions,
                                                    const std::optional<Tensor>& starts, const Tensor&, bool,
                                                    const Tensor& a_, const Tensor& b_, const Tensor& g_) {
  const char* name = "csr_spgemm_backward";
  const Values a(name, "a", a_, t_idx.numel(), a_), b(name, "b", b_, b_idx.numel(), a_),
      g(name, "g", g_, c_idx.numel(), a_);
  const int64_t batch = broadcast_batch(name, g.batch, broadcast_batch(name, a.batch, b.batch));
  const std::vector<int64_t> a_size = result_size(a.batched, a.batch, a.nnz),
                             b_size = result_size(b.batched, b.batch, b.nnz);
  if (batch == 0) return {new_zeros(a_, a_size), new_zeros(a_, b_size)};
  Tensor ga = new_empty(a_, a_size), gb = new_empty(a_, b_size);
  columns<true>(name, a_, t_ptr, t_idx, perm, b_ptr, b_idx, c_ptr, c_idx, positions, starts, a, &b, g, batch,
                ga, a.batch == 1 ? 0 : a.nnz, gb, b.batch == 1 ? 0 : b.nnz);
  return {ga, gb};
}

}  // namespace learnsolve

LS_OPERATORS(m) {
  m.impl("csr_spgemm", TORCH_BOX(&learnsolve::csr_spgemm_cuda));
  m.impl("csr_spgemm_left", TORCH_BOX(&learnsolve::csr_spgemm_left_cuda));
  m.impl("csr_spgemm_right", TORCH_BOX(&learnsolve::csr_spgemm_right_cuda));
  m.impl("csr_spgemm_backward", TORCH_BOX(&learnsolve::csr_spgemm_backward_cuda));
}
