// The operators on segments for CUDA tensors.
#include "kernels/segment.cuh"
#include "ops/row_pass.cuh"
#include "ops/segment.h"

namespace learnsolve {
namespace {

using namespace cuda;

template <class Pass>
LS_KERNEL(kThreads)
segment_kernel(LS_ARGUMENT Pass pass) {
  for_aside(pass.S.batch, [&](int64_t b) {
    for_items<1>(pass.S.rows * pass.S.k, [&](const auto& team, int64_t t) {
      team.first([&] { pass(b, t / pass.S.k, t % pass.S.k); });
    });
  });
}

template <class Pass>
void launch(const Pass& pass, const Tensor& like) {
  const int64_t items = pass.S.rows * pass.S.k;
  if (items == 0 || pass.S.batch == 0) return;
  const OnDevice device(like);
  const dim3 grid(blocks_for(items, kThreads), blocks_aside(pass.S.batch));
  LS_LAUNCH(grid, kThreads, device.stream, (pass), segment_kernel<Pass>);
  STD_CUDA_CHECK(cudaGetLastError());
}

template <class I>
Segments<I> segments(const SparseStructure& S, const SegmentFeatures& e) {
  return {data<I>(S.ptr), data<I>(S.perm), S.rows(), S.nnz(), e.k, e.batch};
}

}  // namespace

std::tuple<Tensor, Tensor> csr_segment_max_cuda(const std::vector<Tensor>& list, const Tensor& e_) {
  const DeviceStructure S("csr_segment_max", e_, list);
  const SegmentFeatures e(S, "e", e_, true);
  Tensor top = new_empty(e_, e.size(S.rows())), at = new_empty(S.idx, e.size(S.rows()));
  dispatch(S.name, e.tensor, S.idx, [&]<class T, class I>() {
    launch(SegmentMax<T, I>{segments<I>(S, e), e.at<T>(0), mutable_data<T>(top), mutable_data<I>(at)}, e_);
  });
  return {top, at};
}

Tensor csr_segment_place_cuda(const std::vector<Tensor>& list, const Tensor& at_, const Tensor& g_) {
  const DeviceStructure S("csr_segment_place", g_, list);
  const SegmentPlaces o(S, at_, g_);
  Tensor out = new_empty(g_, o.g.size(S.nnz()));
  dispatch(S.name, o.g.tensor, S.idx, [&]<class T, class I>() {
    launch(SegmentPlace<T, I>{segments<I>(S, o.g), o.at.at<I>(0), o.g.at<T>(0), mutable_data<T>(out)}, g_);
  });
  return out;
}

Tensor csr_segment_softmax_cuda(const std::vector<Tensor>& list, const Tensor& e_) {
  const DeviceStructure S("csr_segment_softmax", e_, list);
  const SegmentFeatures e(S, "e", e_, true);
  Tensor y = new_empty(e_, e.size(S.nnz()));
  dispatch(S.name, e.tensor, S.idx, [&]<class T, class I>() {
    launch(SegmentSoftmax<T, I>{segments<I>(S, e), e.at<T>(0), mutable_data<T>(y)}, e_);
  });
  return y;
}

Tensor csr_segment_softmax_backward_cuda(const std::vector<Tensor>& list, const Tensor& y_,
                                         const Tensor& g_) {
  const DeviceStructure S("csr_segment_softmax_backward", y_, list);
  const SegmentWeights o(S, y_, g_);
  Tensor out = new_empty(y_, o.y.size(S.nnz()));
  dispatch(S.name, o.y.tensor, S.idx, [&]<class T, class I>() {
    launch(
        SegmentSoftmaxBackward<T, I>{segments<I>(S, o.y), o.y.at<T>(0), o.g.at<T>(0), mutable_data<T>(out)},
        y_);
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
