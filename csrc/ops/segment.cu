// The operators on segments for CUDA tensors.
#include "kernels/segment.cuh"
#include "ops/products.cuh"
#include "ops/segment.h"

namespace learnsolve {
namespace {

using namespace cuda;

template <class I>
Segments<I> segments(const DeviceStructure& S, const SegmentFeatures& e) {
  return {S.schedule<I>(), data<I>(S.perm), e.k, e.batch, 1};
}

// f.template operator()<lanes>(grid) for teams that an average segment keeps busy, if there is anything to
// do.
template <class I, class F>
void with_teams(Segments<I>& S, const F& f) {
  if (S.rows.rows == 0 || S.k == 0 || S.batch == 0) return;
  const bool small = S.rows.nnz / S.rows.rows * S.k < 16;
  const int lanes = small ? 8 : 32;
  while (S.width < lanes && S.width < S.k) S.width *= 2;
  const dim3 grid(blocks_for(S.rows.pieces() * S.tiles(), kThreads / lanes), blocks_aside(S.batch));
  if (small)
    f.template operator()<8>(grid);
  else
    f.template operator()<32>(grid);
  STD_CUDA_CHECK(cudaGetLastError());
}

template <class T, class Op>
void reduce(const OnDevice& device, Op op, const Tensor& like) {
  using Part = typename Op::Part;
  const int64_t count = op.S.batch * op.S.rows.further * op.S.k;
  const Tensor memory = new_empty(like, Size{count * static_cast<int64_t>(sizeof(Part) / sizeof(T))});
  Part* further = reinterpret_cast<Part*>(mutable_data<T>(memory));
  with_teams(op.S, [&]<int N>(dim3 grid) {
    LS_LAUNCH(grid, kThreads, device.stream, (op, further), segment_reduce_kernel<N, Op>);
    if (count > 0)
      LS_LAUNCH(dim3(blocks_for(op.S.rows.further * op.S.k, kThreads / 32), grid.y), kThreads, device.stream,
                (op, further), segment_further_kernel<Op>);
  });
}

template <class Op>
void map(const OnDevice& device, Op op) {
  with_teams(op.S, [&]<int N>(dim3 grid) {
    LS_LAUNCH(grid, kThreads, device.stream, (op), segment_map_kernel<N, Op>);
  });
}

std::tuple<Tensor, Tensor> largest(const DeviceStructure& S, const SegmentFeatures& e) {
  Tensor top = new_empty(e.tensor, e.size(S.rows())), at = new_empty(S.idx, e.size(S.rows()));
  const OnDevice device(e.tensor);
  dispatch(S.name, e.tensor, S.idx, [&]<class T, class I>() {
    reduce<T>(
        device,
        SegmentMax<T, I>{segments<I>(S, e), data<T>(e.tensor), mutable_data<T>(top), mutable_data<I>(at)},
        e.tensor);
  });
  return {top, at};
}

}  // namespace

std::tuple<Tensor, Tensor> csr_segment_max_cuda(const std::vector<Tensor>& list, const Tensor& e_) {
  const DeviceStructure S("csr_segment_max", e_, list);
  return largest(S, SegmentFeatures(S, "e", e_, true));
}

Tensor csr_segment_place_cuda(const std::vector<Tensor>& list, const Tensor& at_, const Tensor& g_) {
  const DeviceStructure S("csr_segment_place", g_, list);
  const SegmentPlaces o(S, at_, g_);
  Tensor out = new_zeros(g_, o.g.size(S.nnz()));
  const int64_t items = S.rows() * o.g.k;
  if (items == 0 || o.g.batch == 0) return out;
  const OnDevice device(g_);
  dispatch(S.name, o.g.tensor, S.idx, [&]<class T, class I>() {
    LS_LAUNCH(dim3(blocks_for(items, kThreads), blocks_aside(o.g.batch)), kThreads, device.stream,
              (segments<I>(S, o.g), data<I>(o.at.tensor), data<T>(o.g.tensor), mutable_data<T>(out)),
              segment_place_kernel<T, I>);
    STD_CUDA_CHECK(cudaGetLastError());
  });
  return out;
}

Tensor csr_segment_softmax_cuda(const std::vector<Tensor>& list, const Tensor& e_) {
  const DeviceStructure S("csr_segment_softmax", e_, list);
  const SegmentFeatures e(S, "e", e_, true);
  const Tensor top = std::get<0>(largest(S, e));
  const Tensor total = new_empty(e_, e.size(S.rows()));
  Tensor y = new_empty(e_, e.size(S.nnz()));
  const OnDevice device(e_);
  dispatch(S.name, e.tensor, S.idx, [&]<class T, class I>() {
    const Segments<I> all = segments<I>(S, e);
    const T *from = data<T>(e.tensor), *tops = data<T>(top);
    reduce<T>(device, Exponentials<T, I>{{mutable_data<T>(total)}, all, from, tops}, e_);
    map(device, Softmax<T, I>{all, from, tops, data<T>(total), mutable_data<T>(y)});
  });
  return y;
}

Tensor csr_segment_softmax_backward_cuda(const std::vector<Tensor>& list, const Tensor& y_,
                                         const Tensor& g_) {
  const DeviceStructure S("csr_segment_softmax_backward", y_, list);
  const SegmentWeights o(S, y_, g_);
  const Tensor sum = new_empty(y_, o.y.size(S.rows()));
  Tensor out = new_empty(y_, o.y.size(S.nnz()));
  const OnDevice device(y_);
  dispatch(S.name, o.y.tensor, S.idx, [&]<class T, class I>() {
    const Segments<I> all = segments<I>(S, o.y);
    const T *y = data<T>(o.y.tensor), *g = data<T>(o.g.tensor);
    reduce<T>(device, WeightedSums<T, I>{{mutable_data<T>(sum)}, all, y, g}, y_);
    map(device, SoftmaxBackward<T, I>{all, y, g, data<T>(sum), mutable_data<T>(out)});
  });
  return out;
}

}  // namespace learnsolve

LS_OPERATORS(m) {
  m.impl("csr_segment_max", TORCH_BOX(&learnsolve::csr_segment_max_cuda));
  m.impl("csr_segment_place", TORCH_BOX(&learnsolve::csr_segment_place_cuda));
  m.impl("csr_segment_softmax", TORCH_BOX(&learnsolve::csr_segment_softmax_cuda));
  m.impl("csr_segment_softmax_backward", TORCH_BOX(&learnsolve::csr_segment_softmax_backward_cuda));
}
