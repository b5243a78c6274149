#include "kernels/kernels.h"

namespace learnsolve::LEARNSOLVE_ISA {

AllKernels all_kernels() {
  AllKernels all;
  fill_products(all);
  fill_sampled_products(all);
  fill_complex_products(all);
  fill_sweeps(all);
  fill_conjugate_gradients(all);
  fill_triangular(all);
  fill_incomplete(all);
  fill_sparse_products(all);
  fill_stencils(all);
  fill_segments(all);
  fill_perceptrons(all);
  fill_pointwise(all);
  return all;
}

}  // namespace learnsolve::LEARNSOLVE_ISA
