#include "kernels/segment.h"

#include "kernels/kernels.h"

namespace learnsolve::LEARNSOLVE_ISA {

void fill_segments(AllKernels& all) {
  all.each([]<class T, class I>(Kernels<T, I>& table) {
    table.segment_max = &segment_max<T, I>;
    table.segment_place = &segment_place<T, I>;
    table.segment_softmax = &segment_softmax<T, I>;
    table.segment_softmax_backward = &segment_softmax_backward<T, I>;
  });
}

}  // namespace learnsolve::LEARNSOLVE_ISA
