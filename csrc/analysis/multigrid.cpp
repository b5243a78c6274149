// The part of learnsolve._analysis that coarsens: values are float64.
#include "analysis/multigrid.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace py = pybind11;
using namespace learnsolve::analysis;

namespace {

template <class T>
using Array = py::array_t<T, py::array::c_style>;

template <class I>
Graph<I> graph(const Array<I>& ptr, const Array<I>& idx, const Array<double>& values) {
  return {ptr.data(), idx.data(), values.data(), static_cast<int64_t>(ptr.size()) - 1};
}

// An array that owns a vector: nothing is copied.
template <class T>
Array<T> moved(std::vector<T>&& v) {
  auto* kept = new std::vector<T>(std::move(v));
  const py::capsule owner(kept, [](void* p) { delete static_cast<std::vector<T>*>(p); });
  return Array<T>(static_cast<py::ssize_t>(kept->size()), kept->data(), owner);
}

template <class I>
py::tuple arrays(Interpolation<I>&& P) {
  return py::make_tuple(moved(std::move(P.ptr)), moved(std::move(P.idx)), moved(std::move(P.values)));
}

template <class I>
void bind(py::module_& m) {
  // (aggregate of each block of `size` rows, their number)
  m.def("aggregate", [](const Array<I>& ptr, const Array<I>& idx, const Array<double>& values, int64_t size,
                        double theta) {
    const Graph<I> A = graph(ptr, idx, values);
    Array<I> of(static_cast<py::ssize_t>(A.n / size));
    I* out = of.mutable_data();
    int64_t count = 0;
    {
      py::gil_scoped_release release;
      count = size == 1 ? aggregate(A, theta, out) : aggregate(Condensed<I>(A, size).graph(), theta, out);
    }
    return py::make_tuple(of, count);
  });
  // Changes `candidates`, (rows, k); returns those of the coarse level.
  m.def("orthonormalize", [](const Array<I>& of, int64_t size, int64_t count, Array<double> candidates) {
    const int64_t rows = candidates.shape(0), k = candidates.shape(1);
    Array<double> coarse({static_cast<py::ssize_t>(count * k), static_cast<py::ssize_t>(k)});
    double *inout = candidates.mutable_data(), *out = coarse.mutable_data();
    py::gil_scoped_release release;
    orthonormalize(of.data(), rows, size, count, k, inout, out);
    return coarse;
  });
  m.def("smoothed_prolongation",
        [](const Array<I>& ptr, const Array<I>& idx, const Array<double>& values, const Array<I>& of,
           int64_t size, int64_t count, const Array<double>& t, double omega) {
          Interpolation<I> P = [&] {
            py::gil_scoped_release release;
            return smoothed_prolongation(graph(ptr, idx, values), of.data(), size, count,
                                         static_cast<int64_t>(t.shape(1)), t.data(), omega);
          }();
          return arrays(std::move(P));
        });
  // (the Hessenberg matrix, (steps + 1, steps); the steps that were made; a bound of the spectral radius)
  m.def("arnoldi", [](const Array<I>& ptr, const Array<I>& idx, const Array<double>& values,
                      const Array<double>& diagonal, int64_t steps, bool symmetric) {
    Array<double> H({static_cast<py::ssize_t>(steps + 1), static_cast<py::ssize_t>(steps)});
    double *out = H.mutable_data(), bound = 0;
    int64_t made = 0;
    {
      py::gil_scoped_release release;
      const Graph<I> A = graph(ptr, idx, values);
      bound = largest_row_sum(A, diagonal.data());
      made = (symmetric ? lanczos<I> : arnoldi<I>)(A, diagonal.data(), steps, out);
    }
    return py::make_tuple(H, made, bound);
  });
  // (strong or not, of each entry; coarse or not, of each row)
  m.def("classical_splitting", [](const Array<I>& ptr, const Array<I>& idx, const Array<double>& values,
                                  double theta, bool second, bool aggressive) {
    const Graph<I> A = graph(ptr, idx, values);
    Array<uint8_t> strong(idx.size()), coarse(static_cast<py::ssize_t>(A.n));
    uint8_t *s = strong.mutable_data(), *c = coarse.mutable_data();
    {
      py::gil_scoped_release release;
      classical_strength(A, theta, s);
      const StrongGraph<I> S(A, s);
      split(S, second && !aggressive, c);
      if (aggressive) split_again(S, c);
    }
    return py::make_tuple(strong, coarse);
  });
  // `most` 0: classical, of any number of entries; -1: multipass.
  m.def("interpolation", [](const Array<I>& ptr, const Array<I>& idx, const Array<double>& values,
                            const Array<double>& diagonal, const Array<uint8_t>& strong,
                            const Array<uint8_t>& coarse, int64_t most) {
    Interpolation<I> P = [&] {
      py::gil_scoped_release release;
      const Graph<I> A = graph(ptr, idx, values);
      if (most < 0) return multipass_interpolation(A, diagonal.data(), strong.data(), coarse.data());
      if (most == 0) return classical_interpolation(A, diagonal.data(), strong.data(), coarse.data());
      return extended_interpolation(A, diagonal.data(), strong.data(), coarse.data(), most);
    }();
    return arrays(std::move(P));
  });
}

}  // namespace

void bind_multigrid(py::module_& m) {
  bind<int32_t>(m);
  bind<int64_t>(m);
}
