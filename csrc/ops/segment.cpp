// Maximum and softmax over the rows or columns of a pattern.
#include "ops/segment.h"

#include "ops/host.h"

namespace learnsolve {
namespace {

// f.template operator()<T, I>(kernels, e's part b as the values of S, blocks, b0, b1, b), on threads.
template <class F>
void for_segments(const Structure& S, const SegmentFeatures& e, const F& f) {
  dispatch(S.name, e.tensor, S.idx, [&]<class T, class I>() {
    for (int64_t b = 0; b < e.batch; ++b) {
      const CsrView<T, I> A = S.view<T, I>(e.at<T>(b));
      parallel_blocks<I>(
          S, e.k, [&](int64_t b0, int64_t b1) { f(kernels().get<T, I>(), A, S.row_blocks<I>(), b0, b1, b); });
    }
  });
}

}  // namespace

std::tuple<Tensor, Tensor> csr_segment_max(const std::vector<Tensor>& list, const Tensor& e_) {
  const Structure S("csr_segment_max", list);
  const SegmentFeatures e(S, "e", e_, true);
  // Places within a segment are counted in integers of e's size (kernels/segment.h).
  STD_TORCH_CHECK(e_.element_size() == 8 || S.nnz() <= 0x7fffffff, S.name,
                  ": e must be float64 for 2^31 entries or more");
  const int64_t part = S.rows() * e.k;
  Tensor top = new_empty(e_, e.size(S.rows())), at = new_empty(S.idx, e.size(S.rows()));
  for_segments(S, e,
               [&]<class T, class I>(const Kernels<T, I>& table, const CsrView<T, I>& A,
                                     const RowBlocks<I>& blocks, int64_t b0, int64_t b1, int64_t b) {
                 table.segment_max(A, blocks, b0, b1, S.nnz() * e.k, e.k, mutable_data<T>(top) + b * part,
                                   mutable_data<I>(at) + b * part);
               });
  return {top, at};
}

Tensor csr_segment_place(const std::vector<Tensor>& list, const Tensor& at_, const Tensor& g_) {
  const Structure S("csr_segment_place", list);
  const SegmentPlaces o(S, at_, g_);
  check_range(S.name, "at", o.at.tensor, -1, S.nnz());
  Tensor out = new_empty(g_, o.g.size(S.nnz()));
  for_segments(S, o.g,
               [&]<class T, class I>(const Kernels<T, I>& table, const CsrView<T, I>& A,
                                     const RowBlocks<I>& blocks, int64_t b0, int64_t b1, int64_t b) {
                 table.segment_place(A, blocks, b0, b1, o.g.k, o.at.at<I>(b), o.g.at<T>(b),
                                     mutable_data<T>(out) + b * S.nnz() * o.g.k);
               });
  return out;
}

Tensor csr_segment_softmax(const std::vector<Tensor>& list, const Tensor& e_) {
  const Structure S("csr_segment_softmax", list);
  const SegmentFeatures e(S, "e", e_, true);
  Tensor y = new_empty(e_, e.size(S.nnz()));
  for_segments(S, e,
               [&]<class T, class I>(const Kernels<T, I>& table, const CsrView<T, I>& A,
                                     const RowBlocks<I>& blocks, int64_t b0, int64_t b1, int64_t b) {
                 table.segment_softmax(A, blocks, b0, b1, S.nnz() * e.k, e.k,
                                       mutable_data<T>(y) + b * S.nnz() * e.k);
               });
  return y;
}

Tensor csr_segment_softmax_backward(const std::vector<Tensor>& list, const Tensor& y_, const Tensor& g_) {
  const Structure S("csr_segment_softmax_backward", list);
  const SegmentWeights o(S, y_, g_);
  Tensor out = new_empty(y_, o.y.size(S.nnz()));
  for_segments(S, o.y,
               [&]<class T, class I>(const Kernels<T, I>& table, const CsrView<T, I>& A,
                                     const RowBlocks<I>& blocks, int64_t b0, int64_t b1, int64_t b) {
                 table.segment_softmax_backward(A, blocks, b0, b1, S.nnz() * o.y.k, o.y.k, o.g.at<T>(b),
                                                mutable_data<T>(out) + b * S.nnz() * o.y.k);
               });
  return out;
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) {
  m.impl("csr_segment_max", TORCH_BOX(&learnsolve::csr_segment_max));
  m.impl("csr_segment_place", TORCH_BOX(&learnsolve::csr_segment_place));
  m.impl("csr_segment_softmax", TORCH_BOX(&learnsolve::csr_segment_softmax));
  m.impl("csr_segment_softmax_backward", TORCH_BOX(&learnsolve::csr_segment_softmax_backward));
}
