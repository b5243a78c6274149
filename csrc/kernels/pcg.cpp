#include "kernels/pcg.h"

#include "kernels/kernels.h"
#include "kernels/program.h"

namespace learnsolve::LEARNSOLVE_ISA {

void fill_conjugate_gradients(AllKernels& all) {
  all.each([]<class T, class I>(Kernels<T, I>& table) {
    table.column_dots = &column_dots<T>;
    table.column_combination = &column_combination<T>;
    table.spmm_dot = &spmm_dot<T, I>;
    table.pcg_residual = &pcg_residual<T, I>;
    table.pcg_update = &pcg_update<T, I>;
    table.pcg_combine = &pcg_combine<T, I>;
    table.pcg_dot = &pcg_dot<T, I>;
    table.pcg_adjoint_residual = &pcg_adjoint_residual<T, I>;
    table.pcg_adjoint_direction = &pcg_adjoint_direction<T, I>;
    table.combine_vectors = &combine_vectors<T>;
    table.absolute_dots = &absolute_dots<T>;
    table.scale_rows = &scale_rows<T>;
  });
}

}  // namespace learnsolve::LEARNSOLVE_ISA
