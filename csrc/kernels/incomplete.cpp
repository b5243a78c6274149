#include "kernels/incomplete.h"

#include "kernels/kernels.h"

namespace learnsolve::LEARNSOLVE_ISA {

void fill_incomplete(AllKernels& all) {
  all.each([]<class T, class I>(Kernels<T, I>& table) {
    table.incomplete_factor = &incomplete_factor<T, I>;
    table.incomplete_tangent = &incomplete_tangent<T, I>;
    table.incomplete_adjoint = &incomplete_adjoint<T, I>;
    table.incomplete_product = &incomplete_product<T, I>;
    table.incomplete_product_adjoint = &incomplete_product_adjoint<T, I>;
  });
}

}  // namespace learnsolve::LEARNSOLVE_ISA
