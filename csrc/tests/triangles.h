// Triangular systems for the tests of CUDA kernels, and their solutions by the host's sweep.
#pragma once

#include "analysis/levels.h"
#include "kernels/sptrsv.h"
#include "kernels/triangular.cuh"
#include "tests/cases.h"

namespace learnsolve::test {

namespace isa = learnsolve::LEARNSOLVE_ISA;

// The triangle of a pattern with a full diagonal, `batch` sets of values whose solutions stay small.
template <class T, class I>
struct Triangles {
  std::string name;
  bool upper, unit;
  int64_t n, nnz, batch = 2;
  Array<I> ptr, idx, perm, blocks, order, bounds;
  Array<T> values;

  Triangles(Random& random, const Structure<I>& S, bool upper_, bool unit_)
      : name(S.name + (upper_ ? ", upper" : ", lower") + (unit_ ? ", unit" : "")),
        upper(upper_),
        unit(unit_),
        n(S.rows),
        nnz(S.nnz()) {
    const auto t = analysis::triangle<I>(S.ptr.data(), n, S.idx.data(), S.permuted ? S.perm.data() : nullptr,
                                         upper, unit);
    ptr = Array<I>(t.ptr), idx = Array<I>(t.idx), perm = Array<I>(t.perm);
    blocks = Array<I>(analysis::triangle_blocks<I>(ptr.data(), n, idx.data(), perm.data()));
    const auto schedule = analysis::level_schedule<I>(S.ptr.data(), n, S.idx.data(), upper);
    order = Array<I>(schedule.order), bounds = Array<I>(schedule.levels);
    values = uniform<T>(random, batch * nnz);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p)
        for (int64_t m = 0; m < batch; ++m) {
          T& v = values[m * nnz + perm[p]];
          v = idx[p] == i ? v + (v < 0 ? -1 : 1) : v / (4 * (ptr[i + 1] - ptr[i]));
        }
  }
  cuda::Triangle<T, I> on_device() const {
    return {ptr.data(), idx.data(), perm.data(), values.data(), nnz, n, upper, unit};
  }
  Array<T> on_host(const Array<T>& b, int64_t k) const {
    Array<T> x = unwritten<T>(batch * n * k);
    for (int64_t m = 0; m < batch; ++m) {
      const TriangleView<T, I> view{{ptr.data(), idx.data(), perm.data(), values.data() + m * nnz},
                                    blocks.data(),
                                    blocks.size() / 3 - 1,
                                    n,
                                    upper,
                                    unit};
      const int64_t at = m * n * k;
      require(isa::sptrsv<T, I>(view, b.data() + at, x.data() + at, k, 0, k), name + ": no zero");
    }
    return x;
  }
};

template <class T>
void require_near(const Array<T>& a, const Array<T>& b, const std::string& what) {
  for (int64_t i = 0; i < a.size(); ++i) {
    const T far = std::fabs(a[i] - b[i]), scale = 1 + std::fabs(a[i]) + std::fabs(b[i]);
    require(far <= 200 * std::numeric_limits<T>::epsilon() * scale, what);
  }
}

}  // namespace learnsolve::test
