#include "kernels/triangular.h"

#include "kernels/kernels.h"

namespace learnsolve::LEARNSOLVE_ISA {

void fill_triangular(AllKernels& all) {
  all.each([]<class T, class I>(Kernels<T, I>& table) {
    table.sptrsv = &sptrsv<T, I>;
    table.sptrsv_rows = &sptrsv_rows<T, I>;
    table.scaled_sptrsv = &scaled_sptrsv<T, I>;
    table.scaled_sptrsv_rows = &scaled_sptrsv_rows<T, I>;
    table.sptrsv_gradient = &sptrsv_gradient<T, I>;
  });
}

}  // namespace learnsolve::LEARNSOLVE_ISA
