// A perceptron with at most one hidden layer, applied to rows that may be edges of a graph.
//
// Gradients of the weights have the same bits for any number of threads: sums of chunks of kChunkRows rows,
// added up in order.
#include <array>

#include "ops/host.h"

namespace learnsolve {
namespace {

constexpr int64_t kChunkRows = 512, kTile = 32;  // kTileRows of kernels/perceptron.h

struct PerceptronOperands {
  const char* name;
  Tensor z, ends, w1, b1, w2, b2;
  std::vector<Tensor> places;
  int64_t batch, n, k, f, o, ends_step;
  bool two;

  PerceptronOperands(const char* name_, const std::vector<Tensor>& places_, const Tensor& z_,
                     const Tensor& ends_, const Tensor& w1_, const Tensor& b1_, const Tensor& w2_,
                     const Tensor& b2_)
      : name(name_),
        z(dense(z_)),
        ends(dense(ends_)),
        w1(dense(w1_)),
        b1(dense(b1_)),
        w2(dense(w2_)),
        b2(dense(b2_)) {
    STD_TORCH_CHECK(z.is_cpu(), name, ": tensors must be on the CPU");
    check_device(name, z, {&ends, &w1, &b1, &w2, &b2});
    for (const Tensor* t : {&ends, &w1, &b1, &w2, &b2})
      STD_TORCH_CHECK(t->scalar_type() == z.scalar_type(), name, ": operands must have one dtype");
    STD_TORCH_CHECK(z.dim() == 3, name, ": z must be (B, n, k), got ", z.dim(), " dimensions");
    batch = z.size(0), n = z.size(1), k = z.size(2);
    STD_TORCH_CHECK(w1.dim() == 2 && w1.size(1) == k, name, ": w1 must be (f, ", k, ")");
    f = w1.size(0);
    STD_TORCH_CHECK(b1.dim() == 1 && b1.size(0) == f, name, ": b1 must be (", f, ")");
    two = w2.numel() > 0;
    STD_TORCH_CHECK(!two || (w2.dim() == 2 && w2.size(1) == f), name, ": w2 must be (o, ", f, ") or empty");
    o = two ? w2.size(0) : f;
    STD_TORCH_CHECK(b2.dim() == 1 && b2.size(0) == (two ? o : 0), name, ": b2 must be (", two ? o : 0, ")");
    check_places(places_);
  }
  void check_places(const std::vector<Tensor>& list) {
    STD_TORCH_CHECK(list.empty() || list.size() == 2, name, ": places must hold row and col, or none, got ",
                    list.size(), " tensors");
    ends_step = 0;
    if (list.empty()) return;
    STD_TORCH_CHECK(ends.dim() == 3 && ends.size(0) == batch && ends.size(1) % 2 == 0 && ends.size(2) == f,
                    name, ": ends must be (", batch, ", 2m, ", f, ")");
    ends_step = ends.size(1) * f;
    for (const Tensor& t : list) {
      check_device(name, z, {&t});
      check_index(name, t);
      STD_TORCH_CHECK(t.dim() == 1 && t.size(0) == n && t.scalar_type() == list[0].scalar_type(), name,
                      ": places must be two index arrays of ", n, " entries");
      STD_TORCH_CHECK(n == 0 || ends.size(1) > 0, name, ": ends must have rows");
      check_range(name, "places", t, 0, ends.size(1) / 2);
      places.push_back(dense(t));
    }
  }
  int64_t chunks() const { return (n + kChunkRows - 1) / kChunkRows; }

  template <class T, class I>
  PerceptronRows<T, I> rows(int64_t b) const {
    PerceptronRows<T, I> rows{data<T>(z) + b * n * k, nullptr, nullptr, nullptr};
    if (!places.empty())
      rows.ends = data<T>(ends) + b * ends_step, rows.row = data<I>(places[0]), rows.col = data<I>(places[1]);
    return rows;
  }
  // f.template operator()<T, I>()
  template <class F>
  void dispatch_types(const F& f) const {
    dispatch_dtype(name, z, [&]<class T>() {
      !places.empty() && places[0].scalar_type() == ScalarType::Long ? f.template operator()<T, int64_t>()
                                                                     : f.template operator()<T, int32_t>();
    });
  }
  // f(b, p0, p1, work) for all chunks, on threads, each with `room` numbers of its own; `i` is the chunk's.
  template <class T, class F>
  void each_chunk(int64_t room, const F& f) const {
    const int64_t work = kChunkRows * std::max<int64_t>(f_of_row(), 1), per = chunks();
    parallel_for(0, batch * per, std::max<int64_t>(kGrain / work, 1), [&](int64_t i0, int64_t i1) {
      std::vector<T> own(room);
      for (int64_t i = i0; i < i1; ++i) {
        const int64_t b = i / per, p0 = i % per * kChunkRows;
        f(i, b, p0, std::min(p0 + kChunkRows, n), own.data());
      }
    });
  }
  int64_t f_of_row() const { return f * (k + (two ? o : 0)); }  // multiply-adds
};

// The weights with rows filled up, and transposed.
template <class T>
struct PerceptronWeights {
  std::array<std::vector<T>, 6> arrays;
  PerceptronView<T> view;

  explicit PerceptronWeights(const PerceptronOperands& P) : view() {
    view.k = P.k, view.f = P.f, view.o = P.o;
    view.kp = filled_up<T>(P.k), view.fp = filled_up<T>(P.f), view.op = filled_up<T>(P.o);
    const T *w1 = data<T>(P.w1), *w2 = data<T>(P.w2);
    const auto put = [](const T* from, int64_t rows, int64_t columns, int64_t width, bool transposed) {
      std::vector<T> to(rows * width);
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j)
          to[i * width + j] = transposed ? from[j * rows + i] : from[i * columns + j];
      return to;
    };
    const int64_t o = P.two ? P.o : 0;
    arrays = {put(w1, P.k, P.f, view.fp, true),
              put(data<T>(P.b1), 1, P.f, view.fp, false),
              put(w2, P.two ? P.f : 0, o, view.op, true),
              put(data<T>(P.b2), 1, o, view.op, false),
              put(w2, o, P.f, view.fp, false),
              put(w1, P.f, P.k, view.kp, false)};
    view.from_input = arrays[0].data(), view.bias = arrays[1].data(), view.from_hidden = arrays[2].data();
    view.out_bias = arrays[3].data(), view.from_output = arrays[4].data();
    view.from_preactivation = arrays[5].data(), view.layers_are_two = P.two;
  }
};

}  // namespace

Tensor perceptron(const std::vector<Tensor>& places, const Tensor& z, const Tensor& ends, const Tensor& w1,
                  const Tensor& b1, const Tensor& w2, const Tensor& b2) {
  const PerceptronOperands P("perceptron", places, z, ends, w1, b1, w2, b2);
  Tensor y = new_empty(P.z, Size{P.batch, P.n, P.o});
  if (y.numel() == 0) return y;
  P.dispatch_types([&]<class T, class I>() {
    const PerceptronWeights<T> weights(P);
    const auto& M = weights.view;
    P.template each_chunk<T>(kTile * (M.fp + M.op), [&](int64_t, int64_t b, int64_t p0, int64_t p1, T* work) {
      kernels().get<T, I>().perceptron(M, P.template rows<T, I>(b), p0, p1, work,
                                       mutable_data<T>(y) + b * P.n * P.o);
    });
  });
  return y;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> perceptron_backward(
    const std::vector<Tensor>& places, const Tensor& z, const Tensor& ends, const Tensor& w1,
    const Tensor& b1, const Tensor& w2, const Tensor& b2, const Tensor& g_, bool need_z, bool need_h) {
  const PerceptronOperands P("perceptron_backward", places, z, ends, w1, b1, w2, b2);
  const Tensor g = dense(g_);
  check_device(P.name, P.z, {&g});
  STD_TORCH_CHECK(g.scalar_type() == P.z.scalar_type() && g.dim() == 3 && g.size(0) == P.batch &&
                      g.size(1) == P.n && g.size(2) == P.o,
                  P.name, ": g must be (", P.batch, ", ", P.n, ", ", P.o, ") and of z's dtype");
  STD_TORCH_CHECK(P.two || !need_h, P.name, ": the cotangent of h is g itself where w2 is empty");
  const Tensor gz = new_empty(P.z, need_z ? sizes_of(P.z) : Size{0}),
               gh = new_empty(P.z, need_h ? Size{P.batch, P.n, P.f} : Size{0}),
               gw1 = new_zeros(P.w1, Size{P.f, P.k}), gb1 = new_zeros(P.b1, Size{P.f}),
               gw2 = new_zeros(P.w2, sizes_of(P.w2)), gb2 = new_zeros(P.b2, sizes_of(P.b2));
  P.dispatch_types([&]<class T, class I>() {
    const PerceptronWeights<T> weights(P);
    const auto& M = weights.view;
    const int64_t count = P.batch * P.chunks(),
                  size = P.f * M.kp + M.fp + P.o * M.fp + M.op;  // of the sums of a chunk
    std::vector<T> sums(count * size);
    P.template each_chunk<T>(
        kTile * (2 * M.fp + 2 * M.kp + M.op), [&](int64_t i, int64_t b, int64_t p0, int64_t p1, T* work) {
          kernels().get<T, I>().perceptron_backward(
              M, P.template rows<T, I>(b), p0, p1, data<T>(g) + b * P.n * P.o, work,
              need_z ? mutable_data<T>(gz) + b * P.n * P.k : nullptr,
              need_h ? mutable_data<T>(gh) + b * P.n * P.f : nullptr, sums.data() + i * size);
        });
    // The rows of `columns` numbers, `width` apart, that begin at `from` in the sums of a chunk.
    const auto collect = [&](const Tensor& to, int64_t from, int64_t columns, int64_t width) {
      T* at = mutable_data<T>(to);
      for (int64_t e = 0; e < to.numel(); ++e) {
        double total = 0;
        for (int64_t i = 0; i < count; ++i)
          total += sums[i * size + from + e / columns * width + e % columns];
        at[e] = static_cast<T>(total);
      }
    };
    collect(gw1, 0, P.k, M.kp);
    collect(gb1, P.f * M.kp, P.f, M.fp);
    collect(gw2, P.f * M.kp + M.fp, P.f, M.fp);
    collect(gb2, P.f * M.kp + M.fp + P.o * M.fp, P.o, M.op);
  });
  return {gz, gh, gw1, gb1, gw2, gb2};
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) {
  m.impl("perceptron", TORCH_BOX(&learnsolve::perceptron));
  m.impl("perceptron_backward", TORCH_BOX(&learnsolve::perceptron_backward));
}
