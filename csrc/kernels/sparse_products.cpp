#include "kernels/sparse_products.h"

#include "kernels/kernels.h"

namespace learnsolve::LEARNSOLVE_ISA {

void fill_sparse_products(AllKernels& all) {
  all.each([]<class T, class I>(Kernels<T, I>& table) {
    table.spgemm_rows = &spgemm_rows<T, I>;
    table.spgemm_left = &spgemm_left<T, I>;
    table.spgemm_columns = &spgemm_columns<T, I>;
    table.spgemm_fused = &spgemm_fused<T, I>;
    table.add = &add<T, I>;
    table.add_backward = &add_backward<T, I>;
  });
}

}  // namespace learnsolve::LEARNSOLVE_ISA
