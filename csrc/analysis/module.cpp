// learnsolve._analysis: structure analysis on NumPy index arrays. Once per pattern, on the host,
// integers only. What is found to be wrong is returned, not thrown: Python writes the message.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>

#include "analysis/levels.h"
#include "analysis/pattern.h"

namespace py = pybind11;
using namespace learnsolve::analysis;

namespace {

template <class I>
using Array = py::array_t<I, py::array::c_style>;

template <class I>
Array<I> array(const std::vector<I>& v) {
  Array<I> out(static_cast<py::ssize_t>(v.size()));
  std::copy(v.begin(), v.end(), out.mutable_data());
  return out;
}

template <class I>
void bind_triangle(py::module_& m) {
  m.def("triangle_size", [](const Array<I>& ptr, const Array<I>& idx, bool upper, bool unit) {
    py::gil_scoped_release release;
    return triangle_size(ptr.data(), static_cast<int64_t>(ptr.size()) - 1, idx.data(), upper, unit);
  });
  m.def("triangle",
        [](const Array<I>& ptr, const Array<I>& idx, const py::object& perm, bool upper, bool unit) {
          const Array<I> p = perm.is_none() ? Array<I>(0) : perm.cast<Array<I>>();
          const I* from = perm.is_none() ? nullptr : p.data();
          const Triangle<I> t = [&] {
            py::gil_scoped_release release;
            return triangle(ptr.data(), static_cast<int64_t>(ptr.size()) - 1, idx.data(), from, upper, unit);
          }();
          return py::make_tuple(array(t.ptr), array(t.idx), array(t.perm));
        });
  m.def("triangle_blocks", [](const Array<I>& ptr, const Array<I>& idx, const py::object& perm) {
    const Array<I> p = perm.is_none() ? Array<I>(0) : perm.cast<Array<I>>();
    const I* from = perm.is_none() ? nullptr : p.data();
    const std::vector<I> table = [&] {
      py::gil_scoped_release release;
      return triangle_blocks(ptr.data(), static_cast<int64_t>(ptr.size()) - 1, idx.data(), from);
    }();
    return array(table).reshape({static_cast<py::ssize_t>(table.size() / 3), static_cast<py::ssize_t>(3)});
  });
  m.def("level_schedule", [](const Array<I>& ptr, const Array<I>& idx, bool upper) {
    const Schedule<I> s = [&] {
      py::gil_scoped_release release;
      return level_schedule(ptr.data(), static_cast<int64_t>(ptr.size()) - 1, idx.data(), upper);
    }();
    return py::make_tuple(array(s.order), array(s.levels));
  });
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
}

}  // namespace

PYBIND11_MODULE(_analysis, m) {
  m.doc() = "Structure analysis of CSR patterns on NumPy index arrays (int32 or int64).";
  bind<int32_t>(m);
  bind<int64_t>(m);
  bind_triangle<int32_t>(m);
  bind_triangle<int64_t>(m);
}
