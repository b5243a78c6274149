// Lists of steps over registers, as their operators share them: checked, and what a step does.
#pragma once

#include "ops/pairs.h"

namespace learnsolve {

// What register `out` becomes, from registers x and y and the operand A, a matrix, s, a number a row, or D, a
// dense matrix; with `transpose` A^T or D^T. learnsolve/ops/core/linear_steps.py has the same numbers.
enum StepKind : int64_t {
  kMultiply,  // A x
  kResidual,  // y - A x
  kAdd,       // y + x
  kSubtract,  // y - x
  kScale,     // s o x
  kScaleAdd,  // y + s o x
  kDense,     // D x
  kKinds
};

struct Step {
  int64_t kind, operand;
  bool transpose;
  int64_t x, y;
  bool reads_y() const { return kind == kResidual || kind == kAdd || kind == kSubtract || kind == kScaleAdd; }
  bool has_operand() const { return kind != kAdd && kind != kSubtract; }
  bool has_matrix() const { return kind == kMultiply || kind == kResidual; }
};
inline constexpr size_t kNumbers = 5;  // of a step

// f(i0, i1) over the rows of a block of k columns.
template <class F>
void parallel_rows(int64_t n, int64_t k, const F& f) {
  const int64_t grain = std::max<int64_t>(kGrain / std::max<int64_t>(k, 1), 1);
  if (n < 2 * grain) return f(int64_t(0), n);
  parallel_for(0, n, grain, f);
}

// y = a + sign x; y may be a.
template <class T>
void combine(const Tensor& a, const Tensor& x, T sign, Tensor& y) {
  const T *from = data<T>(a), *more = data<T>(x);
  T* to = mutable_data<T>(y);
  parallel_rows(y.numel(), 1, [=](int64_t i0, int64_t i1) {
    for (int64_t i = i0; i < i1; ++i) to[i] = from[i] + sign * more[i];
  });
}

// y = a + s o x, without a: s o x; y may be a.
template <class T>
void scale(const Tensor* a, const Tensor& s, const Tensor& x, Tensor& y) {
  const int64_t k = x.size(1);
  const T *from = a ? data<T>(*a) : nullptr, *rows = data<T>(s), *more = data<T>(x);
  T* to = mutable_data<T>(y);
  parallel_rows(x.size(0), k, [=](int64_t i0, int64_t i1) {
    for (int64_t i = i0; i < i1; ++i)
      for (int64_t o = i * k; o < (i + 1) * k; ++o) to[o] = (from ? from[o] : T(0)) + rows[i] * more[o];
  });
}

inline Tensor transposed(const Tensor& D) { return torch::stable::transpose(D, 0, 1); }

struct Steps {
  const char* name;
  std::vector<Structure> structures;  // of matrix m and of its transpose, at 2 m and 2 m + 1
  std::vector<Tensor> operands;       // the values of the matrices come first
  std::vector<Step> steps;
  std::vector<int64_t> rows;  // of each register: that of b, then one for each step
  std::vector<size_t> last;   // the last step that reads it
  int64_t k;

  Steps(const char* name_, const std::vector<Tensor>& S, const std::vector<Tensor>& operands_,
        const Tensor& b, const std::vector<int64_t>& numbers)
      : name(name_) {
    STD_TORCH_CHECK(b.dim() == 2, name, ": b must be (n, k), got ", b.dim(), " dimensions");
    STD_TORCH_CHECK(S.size() % 8 == 0 && S.size() / 8 <= operands_.size(), name,
                    ": structures must hold 8 tensors for each matrix, got ", S.size(), " for ",
                    operands_.size(), " operands");
    STD_TORCH_CHECK(!numbers.empty() && numbers.size() % kNumbers == 0, name, ": steps must hold ", kNumbers,
                    " numbers for each step, at least one, got ", numbers.size());
    for (size_t at = 0; at < S.size(); at += 4)
      structures.emplace_back(name, S[at], S[at + 1], S[at + 2], S[at + 3]);
    for (size_t m = 0; 2 * m < structures.size(); ++m) {
      const Structure &A = structures[2 * m], &At = structures[2 * m + 1];
      STD_TORCH_CHECK(A.nnz() == At.nnz() && A.idx.scalar_type() == At.idx.scalar_type(), name,
                      ": both structures must hold the same entries");
      STD_TORCH_CHECK(operands_[m].dim() == 1 && operands_[m].numel() == A.nnz(), name, ": operand ", m,
                      " must be (nnz) with nnz = ", A.nnz());
      A.check_columns(At.rows()), At.check_columns(A.rows());
    }
    for (const Tensor& t : operands_) {
      check_device(name, b, {&t});
      STD_TORCH_CHECK(t.scalar_type() == b.scalar_type(), name, ": operands and b must have one dtype");
      // Inverses come with their columns in a row each: a product takes them as they are.
      operands.push_back(t.dim() == 2 && t.size(1) > 1 ? t : dense(t));
    }
    k = b.size(1);
    rows.push_back(b.size(0));
    last.push_back(0);
    for (size_t at = 0; at < numbers.size(); at += kNumbers) {
      steps.push_back({numbers[at], numbers[at + 1], numbers[at + 2] != 0, numbers[at + 3], numbers[at + 4]});
      rows.push_back(checked(steps.back()));
      last.push_back(steps.size());
      last[steps.back().x] = steps.size();
      if (steps.back().reads_y()) last[steps.back().y] = steps.size();
    }
  }

  const Structure& structure(const Step& s, bool transpose) const {
    return structures[2 * s.operand + (transpose ? 1 : 0)];
  }

  // y = S x, or y += S x, S as `transpose` says.
  void multiply(const Step& s, bool transpose, const Tensor& x, Tensor& y, bool accumulate) const {
    const Structure& S = structure(s, transpose);
    dispatch(name, x, S.idx, [&]<class T, class I>() {
      const CsrView<T, I> A = S.view<T, I>(data<T>(operands[s.operand]));
      parallel_blocks<I>(S, k, [&](int64_t b0, int64_t b1) {
        kernels().get<T, I>().spmm(A, S.row_blocks<I>(), b0, b1, data<T>(x), k, mutable_data<T>(y),
                                   accumulate);
      });
    });
  }

  Tensor dense_product(const Step& s, bool transpose, const Tensor& x) const {
    const Tensor& D = operands[s.operand];
    return dense(torch::stable::matmul(transpose ? transposed(D) : D, x));
  }

 private:
  // Rows of the result.
  int64_t checked(const Step& s) const {
    const auto known = static_cast<int64_t>(rows.size());
    const auto bad = [&](const char* what) {
      STD_TORCH_CHECK(false, name, ": step ", known - 1, " ", what);
      return int64_t(0);
    };
    if (s.kind < 0 || s.kind >= kKinds) return bad("has an unknown kind");
    if (s.x < 0 || s.x >= known || (s.reads_y() && (s.y < 0 || s.y >= known)))
      return bad("reads a register that no earlier step has written");
    int64_t out = rows[s.x];
    if (s.has_operand()) {
      const auto matrices = static_cast<int64_t>(structures.size() / 2);
      if (s.operand < 0 || s.operand >= static_cast<int64_t>(operands.size()) ||
          s.has_matrix() != (s.operand < matrices))
        return bad("has no operand of its kind");
      const Tensor& operand = operands[s.operand];
      if (s.has_matrix()) {
        if (rows[s.x] != structure(s, !s.transpose).rows())
          return bad("multiplies a register of another size");
        out = structure(s, s.transpose).rows();
      } else if (s.kind == kDense) {
        if (operand.dim() != 2 || operand.size(s.transpose ? 0 : 1) != rows[s.x])
          return bad("multiplies a register of another size");
        out = operand.size(s.transpose ? 1 : 0);
      } else if (operand.numel() != rows[s.x]) {
        return bad("scales a register of another size");
      }
    }
    if (s.reads_y() && rows[s.y] != out) return bad("combines registers of different sizes");
    return out;
  }
};

}  // namespace learnsolve
