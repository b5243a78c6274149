// The table of CPU kernels of one instruction set. kernels.cpp is compiled once for each and fills one
// table; isa.cpp picks.
#pragma once

#include "kernels/csr_view.h"
#include "kernels/pcg_passes.h"

namespace learnsolve {

template <class T, class I>
struct Kernels {
  using A = const CsrView<T, I>&;
  using B = const RowBlocks<I>&;
  void (*spmm)(A, B, int64_t b0, int64_t b1, const T* x, int64_t k, T* y, bool accumulate);
  void (*sddmm)(const I* ptr, const I* idx, B, int64_t b0, int64_t b1, const T* u, const T* v, int64_t k,
                T* out, bool accumulate);
  void (*spmm_backward)(A, B, int64_t b0, int64_t b1, const T* g, const T* x, int64_t k, T* gx, T* ga,
                        bool accumulate_gx, bool accumulate_ga);
  void (*scatter_backward)(A, int64_t r0, int64_t r1, const T* g, const T* x, T* gx, T* ga);
  void (*richardson_sweep)(A, B, int64_t b0, int64_t b1, const T* x, const T* b, const T* s, int64_t k,
                           T* next, T* squares);
  void (*richardson_adjoint)(A, B, int64_t b0, int64_t b1, const T* x, const T* b, const T* s,
                             const T* lambda, const T* c, int64_t k, T* g, T* bbar, T* sbar);
  using S = const TriangleView<T, I>&;
  bool (*sptrsv)(S, const T* b, T* x, int64_t k, int64_t c0, int64_t c1);
  bool (*sptrsv_rows)(S, const I* order, int64_t r0, int64_t r1, const T* b, T* x, int64_t k);
  void (*sptrsv_gradient)(S, int64_t r0, int64_t r1, const T* u, const T* w, int64_t k, T* ga,
                          bool accumulate);
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
};

// The table in use (isa.cpp).
const AllKernels& kernels();

}  // namespace learnsolve
