// Linear functions of a block of columns, written down as steps over registers, in one call. A
// cycle of multigrid on 225 unknowns is some twenty steps of a microsecond; each of them as an operation of
// autograd takes twenty.
#include "ops/linear_steps.h"

namespace learnsolve {

std::vector<Tensor> linear_steps(const std::vector<Tensor>& structures, const std::vector<Tensor>& operands,
                                 const Tensor& b, const std::vector<int64_t>& numbers, bool keep) {
  const Steps p("linear_steps", structures, operands, b, numbers);
  std::vector<std::optional<Tensor>> registers{dense(b)};
  dispatch_dtype(p.name, b, [&]<class T>() {
    for (size_t i = 0; i < p.steps.size(); ++i) {
      const Step& s = p.steps[i];
      const Tensor& x = *registers[s.x];
      const Tensor* y = s.reads_y() ? &*registers[s.y] : nullptr;
      if (s.kind == kDense) {
        registers.emplace_back(p.dense_product(s, s.transpose, x));
      } else {
        Tensor out = new_empty(b, Size{p.rows[i + 1], p.k});
        if (s.has_matrix()) p.multiply(s, s.transpose, x, out, false);
        if (s.kind == kResidual) combine<T>(*y, out, T(-1), out);
        if (s.kind == kAdd || s.kind == kSubtract) combine<T>(*y, x, s.kind == kAdd ? T(1) : T(-1), out);
        if (s.kind == kScale || s.kind == kScaleAdd) scale<T>(y, p.operands[s.operand], x, out);
        registers.emplace_back(std::move(out));
      }
      if (keep) continue;
      for (const int64_t read : {s.x, s.reads_y() ? s.y : s.x})
        if (p.last[read] == i + 1) registers[read].reset();
    }
  });
  std::vector<Tensor> out;
  for (size_t r = keep ? 1 : p.steps.size(); r <= p.steps.size(); ++r) out.push_back(*registers[r]);
  return out;
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) {
  m.impl("linear_steps", TORCH_BOX(&learnsolve::linear_steps));
}
