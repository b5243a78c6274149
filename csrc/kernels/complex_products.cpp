#include "kernels/complex_products.h"

#include "kernels/kernels.h"

namespace learnsolve::LEARNSOLVE_ISA {

void fill_complex_products(AllKernels& all) {
  all.each([]<class T, class I>(Kernels<T, I>& table) {
    table.complex_spmm = &complex_spmm<T, I>;
    table.complex_sddmm = &complex_sddmm<T, I>;
    table.complex_column_dots = &complex_column_dots<T>;
    table.complex_column_combination = &complex_column_combination<T>;
  });
}

}  // namespace learnsolve::LEARNSOLVE_ISA
