#include "kernels/stencil.h"

#include "kernels/kernels.h"

namespace learnsolve::LEARNSOLVE_ISA {

void fill_stencils(AllKernels& all) {
  all.each([]<class T, class I>(Kernels<T, I>& table) {
    table.stencil = &stencil<T>;
    table.stencil_products = &stencil_products<T>;
    table.stencil_correlation = &stencil_correlation<T>;
  });
}

}  // namespace learnsolve::LEARNSOLVE_ISA
