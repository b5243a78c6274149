// Compiled once per instruction set with -DLEARNSOLVE_ISA=<name>. It must not include any header with
// inline functions of its own (no standard library): the linker keeps one copy of those, and that
// could be the one with instructions that the machine does not have.
#include "kernels/kernels.h"

#include "kernels/add.h"
#include "kernels/incomplete.h"
#include "kernels/pcg.h"
#include "kernels/pcg_adjoint.h"
#include "kernels/richardson.h"
#include "kernels/sddmm.h"
#include "kernels/sddmm_pairs.h"
#include "kernels/spgemm.h"
#include "kernels/spmm.h"
#include "kernels/sptrsv.h"
#include "kernels/sptrsv_gradient.h"
#include "kernels/stencil.h"

namespace learnsolve::LEARNSOLVE_ISA {

template <class T, class I>
constexpr Kernels<T, I> table{&spmm<T, I>,
                              &sddmm<T, I>,
                              &spmm_backward<T, I>,
                              &scatter_backward<T, I>,
                              &richardson_sweep<T, I>,
                              &richardson_adjoint<T, I>,
                              &incomplete_factor<T, I>,
                              &incomplete_tangent<T, I>,
                              &incomplete_adjoint<T, I>,
                              &incomplete_product<T, I>,
                              &incomplete_product_adjoint<T, I>,
                              &spgemm_rows<T, I>,
                              &spgemm_left<T, I>,
                              &spgemm_columns<T, I>,
                              &stencil<T>,
                              &stencil_products<T>,
                              &stencil_correlation<T>,
                              &sptrsv<T, I>,
                              &sptrsv_rows<T, I>,
                              &sptrsv_gradient<T, I>,
                              &add<T, I>,
                              &add_backward<T, I>,
                              &spmm_dot<T, I>,
                              &sddmm_pairs<T, I>,
                              &pcg_residual<T, I>,
                              &pcg_update<T, I>,
                              &pcg_combine<T, I>,
                              &pcg_dot<T, I>,
                              &pcg_adjoint_residual<T, I>,
                              &pcg_adjoint_direction<T, I>};

extern const AllKernels all_kernels;
const AllKernels all_kernels{table<float, int32_t>, table<float, int64_t>, table<double, int32_t>,
                             table<double, int64_t>};

}  // namespace learnsolve::LEARNSOLVE_ISA
