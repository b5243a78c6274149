// Perceptrons and their gradients against plain loops in long double.
#include "kernels/perceptron.h"

#include "tests/cases.h"

namespace learnsolve::test {
namespace {

namespace isa = learnsolve::LEARNSOLVE_ISA;

// Rows filled up, of a matrix or of its transpose.
template <class T>
Array<T> filled(const Array<T>& w, int64_t rows, int64_t columns, int64_t width, bool transposed) {
  Array<T> out(rows * width);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      out[i * width + j] = transposed ? w[j * rows + i] : w[i * columns + j];
  return out;
}

template <class T, class I>
void perceptron_case(Random& random, int64_t n, int64_t k, int64_t f, int64_t o, bool edges, bool two) {
  const int64_t m = 5, out = two ? o : f;
  const int64_t kp = filled_up<T>(k), fp = filled_up<T>(f), op = filled_up<T>(out);
  const std::string name = "perceptron " + std::to_string(n) + " x " + std::to_string(k) + ", " +
                           std::to_string(f) + ", " + std::to_string(out) + (edges ? ", edges" : "");
  const Array<T> z = uniform<T>(random, n * k), ends = uniform<T>(random, 2 * m * f),
                 w1 = uniform<T>(random, f * k), b1 = uniform<T>(random, f), w2 = uniform<T>(random, o * f),
                 b2 = uniform<T>(random, o), g = uniform<T>(random, n * out);
  Array<I> row(n), col(n);
  for (int64_t p = 0; p < n; ++p) row[p] = static_cast<I>(p * 2 % m), col[p] = static_cast<I>((p + 3) % m);
  const Array<T> from_input = filled(w1, k, f, fp, true), bias = filled(b1, 1, f, fp, false),
                 from_hidden = filled(w2, f, o, filled_up<T>(o), true),
                 out_bias = filled(b2, 1, o, op, false), from_output = filled(w2, o, f, fp, false),
                 from_preactivation = filled(w1, f, k, kp, false);
  PerceptronView<T> M{};
  M.k = k, M.f = f, M.o = out, M.kp = kp, M.fp = fp, M.op = op, M.layers_are_two = two;
  M.from_input = from_input.data(), M.bias = bias.data(), M.from_hidden = from_hidden.data();
  M.out_bias = out_bias.data(), M.from_output = from_output.data();
  M.from_preactivation = from_preactivation.data();
  const PerceptronRows<T, I> rows{z.data(), edges ? ends.data() : nullptr, row.data(), col.data()};

  Array<T> y = unwritten<T>(n * out), gz = unwritten<T>(n * k), gh = unwritten<T>(n * f);
  Array<T> work(isa::kTileRows * (2 * fp + 2 * kp + op)), sums(f * kp + fp + out * fp + op);
  isa::perceptron<T, I>(M, rows, 0, n / 2, work.data(), y.data());
  isa::perceptron<T, I>(M, rows, n / 2, n, work.data(), y.data());
  for (int64_t i = 0; i < work.size(); ++i) work[i] = 0;
  isa::perceptron_backward<T, I>(M, rows, 0, n, g.data(), work.data(), gz.data(), two ? gh.data() : nullptr,
                                 sums.data());

  const long double bound = 4e2L * std::numeric_limits<T>::epsilon() * static_cast<long double>(k + f + out);
  const auto near = [&](T found, long double wanted, long double scale, const char* what) {
    require(std::fabs(found - wanted) <= bound * scale, name + ", " + what);
  };
  std::vector<long double> of_w1(f * k), of_b1(f), of_w2(o * f), of_b2(o);
  for (int64_t p = 0; p < n; ++p) {
    std::vector<long double> h(f), by_h(f);
    for (int64_t c = 0; c < f; ++c) {
      h[c] = b1[c];
      if (edges) h[c] += static_cast<long double>(ends[2 * row[p] * f + c]) + ends[(2 * col[p] + 1) * f + c];
      for (int64_t i = 0; i < k; ++i) h[c] += static_cast<long double>(w1[c * k + i]) * z[p * k + i];
      by_h[c] = two ? 0 : g[p * out + c];
    }
    for (int64_t q = 0; q < out; ++q) {
      long double sum = two ? b2[q] : h[q];
      for (int64_t c = 0; two && c < f; ++c) {
        const long double active = h[c] > 0 ? h[c] : 0;
        sum += w2[q * f + c] * active;
        of_w2[q * f + c] += g[p * out + q] * active;
        if (h[c] > 0) by_h[c] += static_cast<long double>(w2[q * f + c]) * g[p * out + q];
      }
      if (two) of_b2[q] += g[p * out + q];
      near(y[p * out + q], sum, 1, "y");
    }
    for (int64_t c = 0; c < f; ++c) {
      of_b1[c] += by_h[c];
      for (int64_t i = 0; i < k; ++i) of_w1[c * k + i] += by_h[c] * z[p * k + i];
      if (two) near(gh[p * f + c], by_h[c], 1, "gh");
    }
    for (int64_t i = 0; i < k; ++i) {
      long double sum = 0;
      for (int64_t c = 0; c < f; ++c) sum += by_h[c] * w1[c * k + i];
      near(gz[p * k + i], sum, 1, "gz");
    }
  }
  const T* at = sums.data();
  for (int64_t c = 0; c < f; ++c)
    for (int64_t i = 0; i < k; ++i) near(at[c * kp + i], of_w1[c * k + i], n, "W1");
  at += f * kp;
  for (int64_t c = 0; c < f; ++c) near(at[c], of_b1[c], n, "b1");
  at += fp;
  for (int64_t e = 0; two && e < o * f; ++e) near(at[e / f * fp + e % f], of_w2[e], n, "W2");
  at += out * fp;
  for (int64_t q = 0; two && q < o; ++q) near(at[q], of_b2[q], n, "b2");
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(perceptron) {
  using namespace learnsolve::test;
  Random random(9);
  for (const int64_t n : {0, 1, 31, 70})
    for (const bool edges : {false, true}) {
      perceptron_case<float, int32_t>(random, n, 8, 8, 8, edges, true);
      perceptron_case<float, int64_t>(random, n, 3, 5, 2, edges, true);
      perceptron_case<double, int32_t>(random, n, 1, 9, 1, edges, true);
      perceptron_case<double, int64_t>(random, n, 5, 8, 1, edges, false);
    }
}
