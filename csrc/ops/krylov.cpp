// Iterations of minres, bicgstab and gmres, for one column, until it seems done or Python has to decide.
#include <tuple>

#include "ops/krylov_methods.h"

namespace learnsolve {

namespace {

constexpr int64_t kMinres = 0, kBicgstab = 1, kGmres = 2;

template <class Method, class T>
int64_t iterate(Method& method, double level, double limit, int64_t iterations, T* norms, int64_t& ran,
                T* vectors, T* scalars) {
  for (ran = 0; ran < iterations;) {
    T norm;
    if (!method.step(norm)) break;
    norms[ran++] = norm;
    if (norm <= level || norm > limit) break;
  }
  std::fill(norms + ran, norms + iterations, T(0));
  return method.finish(vectors, scalars);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> csr_krylov(const std::vector<Tensor>& A, const Tensor& values_,
                                                      int64_t method, const std::optional<Tensor>& diagonal_,
                                                      const Tensor& b_, const std::vector<Tensor>& vectors_,
                                                      const std::vector<Tensor>& scalars_, double level,
                                                      double limit, int64_t iterations, int64_t restart) {
  const char* name = "csr_krylov";
  const Structure S(name, A);
  const int64_t n = S.rows();
  const Tensor values = dense(values_), b = dense(b_);
  const std::optional<Tensor> diagonal = dense(diagonal_);
  check_device(name, values, {&S.idx, &b, diagonal ? &*diagonal : &b});
  const auto of_kind = [&](const std::vector<Tensor>& list, int64_t& numbers) {
    std::vector<Tensor> found;
    for (const Tensor& t : list) {
      found.push_back(dense(t));
      check_device(name, values, {&found.back()});
      STD_TORCH_CHECK(t.scalar_type() == values.scalar_type(), name, ": all numbers must have one dtype");
      numbers += t.numel();
    }
    return found;
  };
  int64_t of_vectors = 0, of_scalars = 0, of_b = 0;
  of_kind({b, diagonal ? *diagonal : b}, of_b);
  const std::vector<Tensor> vectors = of_kind(vectors_, of_vectors), scalars = of_kind(scalars_, of_scalars);
  STD_TORCH_CHECK(values.dim() == 1 && values.size(0) == S.nnz(), name, ": values must be (", S.nnz(), ")");
  STD_TORCH_CHECK(b.numel() == n && of_b == 2 * n, name, ": b and a diagonal must be (", n, ")");
  STD_TORCH_CHECK(method >= kMinres && method <= kGmres, name, ": method must be 0, 1 or 2, got ", method);
  STD_TORCH_CHECK(iterations >= 0 && iterations <= (int64_t{1} << 31), name,
                  ": iterations must be 0 ... 2^31, got ", iterations);
  const bool arnoldi = method == kGmres, starts = arnoldi && vectors.size() == 2;
  const int64_t j = arnoldi && !starts && scalars.size() == 4 ? scalars[2].numel() : 0;
  int64_t rows = method == kMinres ? 9 : 5, numbers = method == kMinres ? 10 : 3;
  const bool given = arnoldi && vectors.size() == 5;
  if (arnoldi) rows = starts ? 2 : 3 + 2 * j + given, numbers = 2 + 2 * j;
  STD_TORCH_CHECK(of_vectors == rows * n && of_scalars == numbers &&
                      (!arnoldi || starts || (vectors.size() == 4u + given && vectors[3].numel() == j * n)),
                  name, ": the state is not that of the method");
  STD_TORCH_CHECK(!arnoldi || (restart >= 1 && j <= restart), name, ": restart must be at least ", j,
                  " and 1, got ", restart);
  STD_TORCH_CHECK(!given || (vectors[4].numel() == n && iterations <= 1 && j < restart), name,
                  ": M of a vector is for one iteration that is not a restart");
  S.check_columns(n);
  const int64_t capacity = arnoldi ? std::min(restart, j + iterations) : 0;
  if (arnoldi) rows = given ? 4 : 3 + 2 * capacity, numbers = 2 + 2 * capacity;
  Tensor next = new_empty(b, Size{rows, n}), known = new_empty(b, Size{numbers}),
         norms = new_empty(b, Size{iterations}), counts = new_empty(b, Size{2}, aoti_torch_dtype_int64());
  dispatch(name, values, S.idx, [&]<class T, class I>() {
    Passes<T, I> on(S, data<T>(values), data<T>(diagonal));
    T *to = mutable_data<T>(next), *numbers_out = mutable_data<T>(known);
    int64_t* count = mutable_data<int64_t>(counts);
    const auto run = [&](auto&& steps) {
      count[1] = iterate(steps, level, limit, iterations, mutable_data<T>(norms), count[0], to, numbers_out);
      if (count[1] < 0) count[0] = count[1] = 0;
    };
    if (method == kMinres)
      run(Minres<T, I>(on, data<T>(b), vectors, scalars));
    else if (method == kBicgstab)
      run(Bicgstab<T, I>(on, vectors, scalars));
    else
      run(Gmres<T, I>(on, data<T>(b), restart, j, capacity, vectors, scalars, to));
  });
  return {next, known, norms, counts};
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) { m.impl("csr_krylov", TORCH_BOX(&learnsolve::csr_krylov)); }
