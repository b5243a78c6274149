#include "kernels/sweeps.h"

#include "kernels/kernels.h"

namespace learnsolve::LEARNSOLVE_ISA {

void fill_sweeps(AllKernels& all) {
  all.each([]<class T, class I>(Kernels<T, I>& table) {
    table.richardson_sweep = &richardson_sweep<T, I>;
    table.richardson_adjoint = &richardson_adjoint<T, I>;
  });
}

}  // namespace learnsolve::LEARNSOLVE_ISA
