// learnsolve._analysis: structure analysis on NumPy index arrays. Once per pattern, on the host,
// integers only. What is found to be wrong is returned, not thrown: Python writes the message.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "analysis/pattern.h"
#include "analysis/union.h"

namespace py = pybind11;
using namespace learnsolve::analysis;

namespace {

template <class I>
using Array = py::array_t<I, py::array::c_style>;

template <class T>
Array<T> array_of(const std::vector<T>& v) {
  return Array<T>(static_cast<py::ssize_t>(v.size()), v.data());
}

template <class I>
void bind(py::module_& m) {
  m.def("validate", [](const Array<I>& ptr, const Array<I>& idx, int64_t cols) {
    const auto fault = [&] {
      py::gil_scoped_release release;
      return validate(ptr.data(), static_cast<int64_t>(ptr.size()) - 1, idx.data(),
                      static_cast<int64_t>(idx.size()), cols);
    }();
    return py::make_tuple(static_cast<int>(fault.kind), fault.position, fault.value);
  });
  m.def("row_indices", [](const Array<I>& ptr, int64_t nnz) {
    Array<I> rows(nnz);
    const int64_t m_rows = ptr.size() - 1;
    I* out = rows.mutable_data();
    for (int64_t i = 0; i < m_rows; ++i)
      for (int64_t p = ptr.data()[i]; p < ptr.data()[i + 1]; ++p) out[p] = static_cast<I>(i);
    return rows;
  });
  m.def("transpose", [](const Array<I>& ptr, const Array<I>& idx, int64_t cols) {
    Array<I> tptr(cols + 1), tidx(idx.size()), perm(idx.size());
    I *a = tptr.mutable_data(), *b = tidx.mutable_data(), *c = perm.mutable_data();
    {
      py::gil_scoped_release release;
      transpose(ptr.data(), static_cast<int64_t>(ptr.size()) - 1, idx.data(), cols, a, b, c);
    }
    return py::make_tuple(tptr, tidx, perm);
  });
  m.def("diagonal_positions", [](const Array<I>& ptr, const Array<I>& idx, int64_t cols) {
    const int64_t rows = ptr.size() - 1;
    Array<I> positions(rows < cols ? rows : cols);
    diagonal_positions(ptr.data(), static_cast<int64_t>(positions.size()), idx.data(),
                       positions.mutable_data());
    return positions;
  });
  m.def("row_blocks", [](const Array<I>& ptr, const Array<I>& idx, const py::object& perm, int64_t target) {
    const Array<I> p = perm.is_none() ? Array<I>(0) : perm.cast<Array<I>>();
    const auto table = row_blocks(ptr.data(), static_cast<int64_t>(ptr.size()) - 1, idx.data(),
                                  perm.is_none() ? nullptr : p.data(), target);
    Array<I> out({static_cast<py::ssize_t>(table.size() / 2), static_cast<py::ssize_t>(2)});
    std::copy(table.begin(), table.end(), out.mutable_data());
    return out;
  });
  m.def("merge_patterns",
        [](const Array<I>& a_ptr, const Array<I>& a_idx, const Array<I>& b_ptr, const Array<I>& b_idx) {
          const auto u = [&] {
            py::gil_scoped_release release;
            return merge_patterns(a_ptr.data(), a_idx.data(), b_ptr.data(), b_idx.data(),
                                  static_cast<int64_t>(a_ptr.size()) - 1);
          }();
          const py::ssize_t lines = static_cast<py::ssize_t>(u.starts.size() / 2);
          return py::make_tuple(array_of(u.ptr), array_of(u.idx), array_of(u.codes),
                                array_of(u.starts).reshape({lines, static_cast<py::ssize_t>(2)}));
        });
}

}  // namespace

PYBIND11_MODULE(_analysis, m) {
  m.doc() = "Structure analysis of CSR patterns on NumPy index arrays (int32 or int64).";
  bind<int32_t>(m);
  bind<int64_t>(m);
}
