#include "kernels/factors.h"

#include "kernels/kernels.h"

namespace learnsolve::LEARNSOLVE_ISA {

void fill_incomplete(AllKernels& all) {
  all.each([]<class T, class I>(Kernels<T, I>& table) {
    table.incomplete_factor = &incomplete_factor<T, I>;
    table.incomplete_tangent = &incomplete_tangent<T, I>;
    table.incomplete_adjoint = &incomplete_adjoint<T, I>;
    table.incomplete_product = &incomplete_product<T, I>;
    table.incomplete_product_adjoint = &incomplete_product_adjoint<T, I>;
    using Fill = const CompleteFill<I>&;
    using Cholesky = CompleteFactor<false, T, I>;
    using LU = CompleteFactor<true, T, I>;
    table.complete_factor = [](Fill F, const T* a, T* f, T* work, T* pivot) {
      return F.cholesky ? Cholesky(F, work).factor(a, f, pivot) : LU(F, work).factor(a, f, pivot);
    };
    table.complete_tangent = [](Fill F, const T* f, const T* v, T* z, T* work) {
      F.cholesky ? Cholesky(F, work).tangent(f, v, z) : LU(F, work).tangent(f, v, z);
    };
    table.complete_adjoint = [](Fill F, const T* f, const T* g, T* w, T* work) {
      F.cholesky ? Cholesky(F, work).adjoint(f, g, w) : LU(F, work).adjoint(f, g, w);
    };
    table.complete_product = [](Fill F, const T* x, const T* z, T* b, T* work) {
      F.cholesky ? Cholesky(F, work).product(x, z, b) : LU(F, work).product(x, z, b);
    };
    table.complete_product_adjoint = [](Fill F, const T* x, const T* w, T* c, T* work) {
      F.cholesky ? Cholesky(F, work).product_adjoint(x, w, c) : LU(F, work).product_adjoint(x, w, c);
    };
  });
}

}  // namespace learnsolve::LEARNSOLVE_ISA
