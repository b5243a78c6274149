#include "kernels/perceptron.h"

#include "kernels/kernels.h"

namespace learnsolve::LEARNSOLVE_ISA {

void fill_perceptrons(AllKernels& all) {
  all.each([]<class T, class I>(Kernels<T, I>& table) {
    table.perceptron = &perceptron<T, I>;
    table.perceptron_backward = &perceptron_backward<T, I>;
  });
}

}  // namespace learnsolve::LEARNSOLVE_ISA
