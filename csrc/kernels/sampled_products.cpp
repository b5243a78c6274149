#include "kernels/kernels.h"
#include "kernels/products.h"

namespace learnsolve::LEARNSOLVE_ISA {

void fill_sampled_products(AllKernels& all) {
  all.each([]<class T, class I>(Kernels<T, I>& table) {
    table.sddmm = &sddmm<T, I>;
    table.spmm_backward = &spmm_backward<T, I>;
    table.scatter_backward = &scatter_backward<T, I>;
    table.sddmm_pairs = &sddmm_pairs<T, I>;
  });
}

}  // namespace learnsolve::LEARNSOLVE_ISA
