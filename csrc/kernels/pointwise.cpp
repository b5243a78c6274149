#include "kernels/pointwise.h"

#include "kernels/kernels.h"

namespace learnsolve::LEARNSOLVE_ISA {

void fill_pointwise(AllKernels& all) {
  all.each([]<class T, class I>(Kernels<T, I>& table) {
    table.pointwise_f32 = {&pointwise_rows<T, float, I>, &pointwise_columns<T, float, I>};
    table.pointwise_f64 = {&pointwise_rows<T, double, I>, &pointwise_columns<T, double, I>};
  });
}

}  // namespace learnsolve::LEARNSOLVE_ISA
