// learnsolve._analysis: structure analysis on NumPy index arrays. Once per pattern, on the host, integers
// only but for choices by threshold. Faults are returned, not thrown: Python writes the message.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "analysis/coloring.h"
#include "analysis/factors.h"
#include "analysis/levels.h"
#include "analysis/pattern.h"
#include "analysis/pieces.h"
#include "analysis/sparse_products.h"

namespace py = pybind11;
using namespace learnsolve::analysis;

void bind_multigrid(py::module_& m);  // multigrid.cpp

namespace {

template <class I>
using Array = py::array_t<I, py::array::c_style>;

// Arrays of NumPy's that take these over, without a copy; of the first, n elements.
template <class E>
Array<E> array(Growing<E>& elements, int64_t n) {
  E* data = elements.release(n);
  const py::capsule owner(data, [](void* p) { std::free(p); });
  return Array<E>(static_cast<py::ssize_t>(n), data, owner);
}

template <class E>
Array<E> array(std::vector<E>& elements) {
  if (elements.empty()) return Array<E>(0);
  auto* kept = new std::vector<E>(std::move(elements));
  const py::capsule owner(kept, [](void* p) { delete static_cast<std::vector<E>*>(p); });
  return Array<E>(static_cast<py::ssize_t>(kept->size()), kept->data(), owner);
}

template <class N, class I>
py::tuple elimination_arrays(const Array<I>& ptr, const Array<I>& idx, const Array<I>& diagonal, Factors kind,
                             int64_t products) {
  auto plan = [&] {
    py::gil_scoped_release release;
    return elimination_plan<N>(ptr.data(), static_cast<int64_t>(ptr.size()) - 1, idx.data(), diagonal.data(),
                               kind, products);
  }();
  const int64_t steps = plan.steps;
  return py::make_tuple(array(plan.order, steps), array(plan.source, steps), array(plan.pivot, steps),
                        array(plan.ptr, steps + 1), array(plan.pairs, 2 * plan.products),
                        array(plan.units, plan.ones));
}

template <class I>
py::array table_of_triples(std::vector<I> table) {
  const auto lines = static_cast<py::ssize_t>(table.size() / 3);
  return array(table).reshape({lines, static_cast<py::ssize_t>(3)});
}

// (colors, ptr, vertices) of n vertices, by color, for `color(n, colors)`, which returns how many there are.
template <class I, class Color>
py::tuple grouped(int64_t n, const Color& color) {
  Array<I> colors(n), vertices(n);
  I *c = colors.mutable_data(), *v = vertices.mutable_data();
  std::vector<I> first;
  {
    py::gil_scoped_release release;
    const int64_t count = color(n, c);
    first.resize(count + 1);
    group_by_color(c, n, count, first.data(), v);
  }
  return py::make_tuple(colors, array(first), vertices);
}

template <class I>
void bind_spgemm(py::module_& m) {
  m.def("count_products", [](const Array<I>& a_idx, const Array<I>& b_ptr) {
    return count_products(a_idx.data(), static_cast<int64_t>(a_idx.size()), b_ptr.data());
  });
  // (c_ptr, c_idx); None if C may have more than `most` entries.
  m.def("product_pattern",
        [](const Array<I>& a_ptr, const Array<I>& a_idx, const Array<I>& b_ptr, const Array<I>& b_idx,
           int64_t cols, int64_t most, int64_t threads) -> py::object {
          const int64_t rows = a_ptr.size() - 1;
          Array<I> c_ptr(rows + 1);
          Growing<I> c_idx;
          I* ptr = c_ptr.mutable_data();
          bool fits = true;
          {
            py::gil_scoped_release release;
            fits = product_pattern(a_ptr.data(), rows, a_idx.data(), b_ptr.data(),
                                   static_cast<int64_t>(b_ptr.size()) - 1, b_idx.data(), cols, ptr, c_idx,
                                   most, threads);
          }
          if (!fits) return py::none();
          return py::make_tuple(c_ptr, array(c_idx, ptr[rows]));
        });
  // (positions, repeated)
  m.def("positions_of_products",
        [](const Array<I>& a_ptr, const Array<I>& a_idx, const Array<I>& b_ptr, const Array<I>& b_idx,
           int64_t cols, const Array<I>& c_ptr, const Array<I>& c_idx, int64_t products, int64_t threads) {
          Array<int32_t> positions(products);
          Array<uint8_t> repeated(a_ptr.size() - 1);
          int32_t* out = positions.mutable_data();
          uint8_t* rep = repeated.mutable_data();
          {
            py::gil_scoped_release release;
            positions_of_products(a_ptr.data(), static_cast<int64_t>(a_ptr.size()) - 1, a_idx.data(),
                                  b_ptr.data(), static_cast<int64_t>(b_ptr.size()) - 1, b_idx.data(), cols,
                                  c_ptr.data(), c_idx.data(), out, rep, threads);
          }
          return py::make_tuple(positions, repeated);
        });
  m.def("row_product_blocks",
        [](const Array<I>& a_ptr, const Array<I>& a_idx, const Array<I>& b_ptr, const Array<I>& c_ptr,
           const std::optional<Array<uint8_t>>& repeated, int64_t target) {
          return table_of_triples(row_product_blocks(a_ptr.data(), static_cast<int64_t>(a_ptr.size()) - 1,
                                                     a_idx.data(), b_ptr.data(), c_ptr.data(),
                                                     repeated ? repeated->data() : nullptr, target));
        });
  m.def("column_product_blocks", [](const Array<I>& t_ptr, const Array<I>& perm, const Array<I>& b_ptr,
                                    const std::optional<Array<int32_t>>& positions,
                                    const std::optional<Array<int32_t>>& starts, int64_t target) {
    return table_of_triples(column_product_blocks(
        t_ptr.data(), static_cast<int64_t>(t_ptr.size()) - 1, perm.data(), b_ptr.data(),
        positions ? positions->data() : nullptr, starts ? starts->data() : nullptr, target));
  });
  m.def("product_starts", [](const Array<I>& a_idx, const Array<I>& b_ptr, const Array<I>& perm) {
    Array<int32_t> starts(perm.size());
    product_starts(a_idx.data(), static_cast<int64_t>(a_idx.size()), b_ptr.data(), perm.data(),
                   starts.mutable_data());
    return starts;
  });
}

template <class I>
void bind_triangle(py::module_& m) {
  // (ptr, idx, perm), None if it is the whole matrix
  m.def("triangle",
        [](const Array<I>& ptr, const Array<I>& idx, const py::object& perm, bool upper,
           int64_t k) -> py::object {
          const Array<I> p = perm.is_none() ? Array<I>(0) : perm.cast<Array<I>>();
          const I* from = perm.is_none() ? nullptr : p.data();
          const int64_t n = static_cast<int64_t>(ptr.size()) - 1;
          Triangle<I> t;
          {
            py::gil_scoped_release release;
            std::vector<I> rows = triangle_rows(ptr.data(), n, idx.data(), upper, k);
            if (rows[n] < ptr.data()[n])
              t = triangle(ptr.data(), n, idx.data(), from, upper, std::move(rows));
          }
          if (t.ptr.empty()) return py::none();
          return py::make_tuple(array(t.ptr), array(t.idx), array(t.perm));
        });
  m.def("triangle_blocks", [](const Array<I>& ptr, const Array<I>& idx, const py::object& perm) {
    const Array<I> p = perm.is_none() ? Array<I>(0) : perm.cast<Array<I>>();
    const I* from = perm.is_none() ? nullptr : p.data();
    return table_of_triples([&] {
      py::gil_scoped_release release;
      return triangle_blocks(ptr.data(), static_cast<int64_t>(ptr.size()) - 1, idx.data(), from);
    }());
  });
  m.def("level_schedule", [](const Array<I>& ptr, const Array<I>& idx, bool upper) {
    Schedule<I> s = [&] {
      py::gil_scoped_release release;
      return level_schedule(ptr.data(), static_cast<int64_t>(ptr.size()) - 1, idx.data(), upper);
    }();
    return py::make_tuple(array(s.order), array(s.levels));
  });
}

template <class I, class T>
void bind_symmetry(py::module_& m) {
  m.def("symmetry_of", [](const Array<I>& ptr, const Array<I>& idx, const Array<T>& values) {
    py::gil_scoped_release release;
    return static_cast<int>(
        symmetry_of(ptr.data(), static_cast<int64_t>(ptr.size()) - 1, idx.data(), values.data()));
  });
}

template <class I>
void bind(py::module_& m) {
  bind_symmetry<I, float>(m);
  bind_symmetry<I, double>(m);
  m.def("elimination_products",
        [](const Array<I>& ptr, const Array<I>& idx, const Array<I>& diagonal, int kind, int64_t enough) {
          py::gil_scoped_release release;
          return elimination_products(ptr.data(), static_cast<int64_t>(ptr.size()) - 1, idx.data(),
                                      diagonal.data(), static_cast<Factors>(kind), enough);
        });
  m.def("elimination_plan", [](const Array<I>& ptr, const Array<I>& idx, const Array<I>& diagonal, int kind,
                               bool narrow, int64_t products) {
    const auto factors = static_cast<Factors>(kind);
    return narrow ? elimination_arrays<int32_t>(ptr, idx, diagonal, factors, products)
                  : elimination_arrays<int64_t>(ptr, idx, diagonal, factors, products);
  });
  m.def("elimination_levels", [](const Array<I>& order, const Array<I>& pivot, const Array<I>& ptr,
                                 const Array<I>& pairs, int64_t entries) {
    Array<int64_t> levels(order.size());
    int64_t* out = levels.mutable_data();
    py::gil_scoped_release release;
    elimination_levels(static_cast<int64_t>(order.size()), order.data(), pivot.data(), ptr.data(),
                       pairs.data(), entries, out);
    return levels;
  });
  m.def("common_positions",
        [](const Array<I>& a_ptr, const Array<I>& a_idx, const Array<I>& b_ptr, const Array<I>& b_idx) {
          auto both = [&] {
            py::gil_scoped_release release;
            return common_positions(a_ptr.data(), a_idx.data(), b_ptr.data(), b_idx.data(),
                                    static_cast<int64_t>(a_ptr.size()) - 1);
          }();
          return py::make_tuple(array(both.a), array(both.b));
        });
  m.def("level_fill", [](const Array<I>& ptr, const Array<I>& idx, int64_t most) {
    auto found = [&] {
      py::gil_scoped_release release;
      return level_fill(ptr.data(), static_cast<int64_t>(ptr.size()) - 1, idx.data(), most);
    }();
    return py::make_tuple(array(found.ptr), array(found.idx));
  });
  // (entries, ptr, idx), the last empty if there are more than `most`
  m.def("complete_fill", [](const Array<I>& ptr, const Array<I>& idx, const Array<I>& order, int64_t most) {
    auto L = [&] {
      py::gil_scoped_release release;
      return complete_fill(ptr.data(), static_cast<int64_t>(ptr.size()) - 1, idx.data(), order.data(), most);
    }();
    return py::make_tuple(L.entries, array(L.ptr), array(L.idx));
  });
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
    row_indices(ptr.data(), static_cast<int64_t>(ptr.size()) - 1, rows.mutable_data());
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
  bind_spgemm<I>(m);
  m.def("greedy_coloring", [](const Array<I>& ptr, const Array<I>& idx, const Array<I>& tptr,
                              const Array<I>& tidx, bool largest_first) {
    return grouped<I>(ptr.size() - 1, [&](int64_t n, I* colors) {
      return greedy_coloring(ptr.data(), n, idx.data(), tptr.data(), tidx.data(), largest_first, colors);
    });
  });
  m.def("column_coloring",
        [](const Array<I>& ptr, const Array<I>& idx, const Array<I>& tptr, const Array<I>& tidx, int order) {
          return grouped<I>(tptr.size() - 1, [&](int64_t n, I* colors) {
            return column_coloring(ptr.data(), static_cast<int64_t>(ptr.size()) - 1, idx.data(), tptr.data(),
                                   n, tidx.data(), static_cast<Order>(order), colors);
          });
        });
  // Is `colors`, each below count, a coloring of the columns? Then as `column_coloring` returns it, else
  // None.
  m.def("as_column_coloring",
        [](const Array<I>& ptr, const Array<I>& idx, const Array<I>& colors, int64_t count) -> py::object {
          const int64_t rows = ptr.size() - 1;
          if (!is_column_coloring(ptr.data(), rows, idx.data(), colors.data(), count)) return py::none();
          return grouped<I>(colors.size(), [&](int64_t n, I* out) {
            std::copy(colors.data(), colors.data() + n, out);
            return count;
          });
        });
  // perm: that of the transpose, which takes each entry to that across the diagonal.
  m.def("symmetric_coloring",
        [](const Array<I>& ptr, const Array<I>& idx, const Array<I>& perm, int order, bool acyclic) {
          return grouped<I>(ptr.size() - 1, [&](int64_t n, I* colors) {
            SymmetricColoring<I> coloring(ptr.data(), n, idx.data(), static_cast<Order>(order), colors);
            if (!acyclic) return coloring.star();
            const int64_t nnz = idx.size();
            std::vector<I> edge(nnz);
            for (int64_t p = 0; p < nnz; ++p) edge[p] = std::min(static_cast<I>(p), perm.data()[p]);
            return coloring.acyclic(edge.data(), nnz);
          });
        });
  // (ptr, idx, equation, unknown), as struct Substitution has them.
  m.def("substitution",
        [](const Array<I>& ptr, const Array<I>& idx, const Array<I>& perm, const Array<I>& colors) {
          auto s = [&] {
            py::gil_scoped_release release;
            return substitution(ptr.data(), static_cast<int64_t>(ptr.size()) - 1, idx.data(), perm.data(),
                                colors.data());
          }();
          return py::make_tuple(array(s.ptr), array(s.idx), array(s.equation), array(s.unknown));
        });
  m.def("merge_patterns",
        [](const Array<I>& a_ptr, const Array<I>& a_idx, const Array<I>& b_ptr, const Array<I>& b_idx) {
          auto u = [&] {
            py::gil_scoped_release release;
            return merge_patterns(a_ptr.data(), a_idx.data(), b_ptr.data(), b_idx.data(),
                                  static_cast<int64_t>(a_ptr.size()) - 1);
          }();
          const py::ssize_t lines = static_cast<py::ssize_t>(u.starts.size() / 2);
          return py::make_tuple(array(u.ptr), array(u.idx), array(u.codes),
                                array(u.starts).reshape({lines, static_cast<py::ssize_t>(2)}));
        });
  m.def("match_rows", [](const Array<I>& ptr, const Array<I>& idx, int64_t cols) {
    Array<I> row_of(cols);
    I* out = row_of.mutable_data();
    {
      py::gil_scoped_release release;
      match_rows(ptr.data(), static_cast<int64_t>(ptr.size()) - 1, idx.data(), cols, out);
    }
    return row_of;
  });
}

}  // namespace

PYBIND11_MODULE(_analysis, m) {
  m.doc() = "Structure analysis of CSR patterns on NumPy index arrays (int32 or int64).";
  on_pulse = [] {
    py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  };
  // (ptr, idx, row and pivot of a breakdown: -1 if there is none)
  m.def("threshold_pattern", [](const Array<int64_t>& ptr, const Array<int64_t>& idx,
                                const Array<double>& values, bool cholesky, int64_t fill, double tolerance) {
    Choice c = [&] {
      py::gil_scoped_release release;
      const auto choose = cholesky ? threshold_cholesky : threshold_lu;
      return choose(ptr.data(), static_cast<int64_t>(ptr.size()) - 1, idx.data(), values.data(), fill,
                    tolerance);
    }();
    const int64_t entries = c.row < 0 ? c.ptr.back() : 0;
    return py::make_tuple(array(c.ptr), array(c.idx, entries), c.row, c.pivot);
  });
  bind<int32_t>(m);
  bind<int64_t>(m);
  bind_triangle<int32_t>(m);
  bind_triangle<int64_t>(m);
  bind_multigrid(m);
}
