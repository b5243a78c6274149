#include "kernels/products.h"

#include "kernels/kernels.h"

namespace learnsolve::LEARNSOLVE_ISA {

void fill_products(AllKernels& all) {
  all.each([]<class T, class I>(Kernels<T, I>& table) { table.spmm = &spmm<T, I>; });
}

}  // namespace learnsolve::LEARNSOLVE_ISA
