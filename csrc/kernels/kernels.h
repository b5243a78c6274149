// The table of CPU kernels of one instruction set. Each family of kernels is a file of its own (products.cpp,
// sweeps.cpp, ...), compiled once per instruction set with -DLEARNSOLVE_ISA=<name>, that fills in its part;
// kernels.cpp collects the parts and ops/host.cpp picks a table.
//
// These files must not include any header with inline functions of its own (no standard library): the linker
// keeps one copy of those, and that could be the one with instructions that the machine lacks.
#pragma once

#include "kernels/views.h"

namespace learnsolve {

// For a network of T and values V.
template <class T, class V, class I>
struct PointwiseKernels {
  void (*rows)(const PointwiseView<T, V, I>&, int64_t r0, int64_t r1, PointwiseRoom<T, V>);
  void (*columns)(const PointwiseView<T, V, I>&, int64_t r0, int64_t r1);
};

template <class T, class I>
struct Kernels {
  using A = const CsrView<T, I>&;
  using B = const RowBlocks<I>&;
  using Complete = const CompleteFill<I>&;
  using Incomplete = const Elimination<I>&;
  using Product = const ProductView<I>&;
  using Stencil = const StencilView&;
  using Triangle = const TriangleView<T, I>&;
  void (*spmm)(A, B, int64_t b0, int64_t b1, const T* x, int64_t k, T* y, bool accumulate);
  void (*sddmm)(const I* ptr, const I* idx, B, int64_t b0, int64_t b1, const T* u, const T* v, int64_t k,
                T* out, bool accumulate);
  // The same with complex numbers, pairs of T (complex_products.h).
  void (*complex_spmm)(A, B, int64_t b0, int64_t b1, const T* x, int64_t k, T* y, bool accumulate,
                       bool conjugate);
  void (*complex_sddmm)(const I* ptr, const I* idx, B, int64_t b0, int64_t b1, const T* u, const T* v,
                        int64_t k, T* out, bool accumulate, int64_t conjugate);
  void (*spmm_backward)(A, B, int64_t b0, int64_t b1, const T* g, const T* x, int64_t k, T* gx, T* ga,
                        bool accumulate_gx, bool accumulate_ga);
  void (*scatter_backward)(A, int64_t r0, int64_t r1, const T* g, const T* x, T* gx, T* ga);
  void (*richardson_sweep)(A, B, int64_t b0, int64_t b1, Sweep<T>, int64_t k);
  void (*richardson_adjoint)(B, int64_t b0, int64_t b1, SweepAdjoint<T>, int64_t k);
  int64_t (*incomplete_factor)(Incomplete, const T* a, T* f);
  void (*incomplete_tangent)(Incomplete, const T* f, const T* v, T* z);
  void (*incomplete_adjoint)(Incomplete, const T* f, T* g, T* w);
  void (*incomplete_product)(Incomplete, const T* x, const T* z, T* b);
  void (*incomplete_product_adjoint)(Incomplete, const T* x, const T* w, T* c);
  int64_t (*complete_factor)(Complete, const T* a, T* f, T* work, T* pivot);
  void (*complete_tangent)(Complete, const T* f, const T* v, T* z, T* work);
  void (*complete_adjoint)(Complete, const T* f, const T* g, T* w, T* work);
  void (*complete_product)(Complete, const T* x, const T* z, T* b, T* work);
  void (*complete_product_adjoint)(Complete, const T* x, const T* w, T* c, T* work);
  void (*spgemm_rows)(Product, int64_t r0, int64_t r1, int64_t f, bool uniform, const T* a, const T* b, T* c,
                      I* marker, bool accumulate);
  void (*spgemm_left)(Product, int64_t r0, int64_t r1, int64_t f, const T* g, const T* b, T* ga, I* marker,
                      bool accumulate);
  void (*spgemm_columns)(Product, int64_t k0, int64_t k1, bool uniform, const T* a, const T* b, const T* g,
                         T* ga, T* gb, bool add_a, bool add_b);
  int64_t (*spgemm_fused)(Product, int64_t i, int64_t r1, int64_t end, const T* a, const T* b, I* place,
                          I* c_ptr, I* c_idx, T* c);
  // These have no indices: the same for every I.
  void (*stencil)(Stencil, Coefficients, int64_t b0, int64_t b1, const T* c, const T* x, T* y,
                  bool accumulate);
  void (*stencil_products)(Stencil, int64_t b0, int64_t b1, const T* u, const T* w, T* q, bool accumulate);
  void (*stencil_correlation)(Stencil, int64_t b0, int64_t b1, const T* u, const T* w, T* partial);
  void (*column_dots)(const T* u, const T* v, int64_t rows, int64_t k, T* sum);
  void (*column_combination)(const T* a, const T* v, int64_t rows, int64_t k, T* y, bool accumulate);
  void (*complex_column_dots)(const T* u, const T* v, int64_t rows, int64_t k, T* sum);  // the same
  void (*complex_column_combination)(const T* a, const T* v, int64_t rows, int64_t k, T* y, bool accumulate);
  bool (*sptrsv)(Triangle, const T* b, T* x, int64_t k, int64_t c0, int64_t c1);
  bool (*sptrsv_rows)(Triangle, const I* order, int64_t r0, int64_t r1, const T* b, T* x, int64_t k);
  bool (*scaled_sptrsv)(Triangle, ScaledSweep<T>, int64_t k, int64_t c0, int64_t c1);
  bool (*scaled_sptrsv_rows)(Triangle, const I* order, int64_t r0, int64_t r1, ScaledSweep<T>, int64_t k);
  void (*sptrsv_gradient)(Triangle, int64_t r0, int64_t r1, const T* u, const T* w, int64_t k, T* ga,
                          bool accumulate);
  void (*add)(const uint8_t* codes, const I* starts, int64_t chunk0, int64_t chunk1, int64_t n, const T* a,
              int64_t na, const T* b, int64_t nb, T alpha, T beta, T* c);
  void (*add_backward)(const uint8_t* codes, const I* starts, int64_t chunk0, int64_t chunk1, int64_t n,
                       const T* g, T alpha, T beta, T* ga, T* gb);
  void (*segment_max)(A, B, int64_t b0, int64_t b1, int64_t size, int64_t k, T* top, I* at);
  void (*segment_place)(A, B, int64_t b0, int64_t b1, int64_t k, const I* at, const T* g, T* out);
  void (*segment_softmax)(A, B, int64_t b0, int64_t b1, int64_t size, int64_t k, T* y);
  void (*segment_softmax_backward)(A, B, int64_t b0, int64_t b1, int64_t size, int64_t k, const T* g, T* out);
  void (*perceptron)(const PerceptronView<T>&, const PerceptronRows<T, I>&, int64_t r0, int64_t r1, T* work,
                     T* y);
  void (*perceptron_backward)(const PerceptronView<T>&, const PerceptronRows<T, I>&, int64_t r0, int64_t r1,
                              const T* g, T* work, T* gz, T* gh, T* sums);
  PointwiseKernels<T, float, I> pointwise_f32;
  PointwiseKernels<T, double, I> pointwise_f64;
  template <class V>
  const PointwiseKernels<T, V, I>& pointwise() const {
    if constexpr (sizeof(V) == 4)
      return pointwise_f32;
    else
      return pointwise_f64;
  }
  void (*spmm_dot)(A, B, int64_t b0, int64_t b1, const T* x, const T* u, int64_t k, T* y, T* sum);
  void (*sddmm_pairs)(const I* ptr, const I* idx, B, int64_t b0, int64_t b1, const T* const* u,
                      const T* const* v, int64_t pairs, int64_t k, T* out);
  void (*pcg_residual)(B, int64_t b0, int64_t b1, PcgResidual<T>, int64_t k);
  void (*pcg_update)(B, int64_t b0, int64_t b1, PcgUpdate<T>, int64_t k);
  void (*pcg_combine)(B, int64_t b0, int64_t b1, PcgCombine<T>, int64_t k);
  void (*pcg_dot)(B, int64_t b0, int64_t b1, PcgDot<T>, int64_t k);
  void (*pcg_adjoint_residual)(B, int64_t b0, int64_t b1, PcgAdjointResidual<T>, int64_t k);
  void (*pcg_adjoint_direction)(A, B, int64_t b0, int64_t b1, PcgAdjointDirection<T>, int64_t k, const T* p,
                                T* ga);
  void (*combine_vectors)(const Combination<T>&, int64_t size, int64_t k);
  void (*absolute_dots)(const T* u, const T* v, int64_t size, int64_t k, T* sum);
  void (*scale_rows)(const T* d, const T* v, int64_t rows, int64_t k, T* out);
};

struct AllKernels {
  Kernels<float, int32_t> f32_i32;
  Kernels<float, int64_t> f32_i64;
  Kernels<double, int32_t> f64_i32;
  Kernels<double, int64_t> f64_i64;
  template <class T, class I>
  const Kernels<T, I>& get() const {
    if constexpr (sizeof(T) == 4) {
      if constexpr (sizeof(I) == 4)
        return f32_i32;
      else
        return f32_i64;
    } else {
      if constexpr (sizeof(I) == 4)
        return f64_i32;
      else
        return f64_i64;
    }
  }
  // f(table) for each table.
  template <class F>
  LS_INLINE void each(const F& f) {
    f(f32_i32);
    f(f32_i64);
    f(f64_i32);
    f(f64_i64);
  }
};

// The table in use (ops/host.cpp).
const AllKernels& kernels();

namespace LEARNSOLVE_ISA {

void fill_products(AllKernels&);
void fill_sampled_products(AllKernels&);
void fill_complex_products(AllKernels&);
void fill_sweeps(AllKernels&);
void fill_conjugate_gradients(AllKernels&);
void fill_triangular(AllKernels&);
void fill_incomplete(AllKernels&);
void fill_sparse_products(AllKernels&);
void fill_stencils(AllKernels&);
void fill_segments(AllKernels&);
void fill_perceptrons(AllKernels&);
void fill_pointwise(AllKernels&);

}  // namespace LEARNSOLVE_ISA

}  // namespace learnsolve
