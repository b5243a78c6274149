// A triangular factor predicted row by row by a perceptron (kernels/pointwise.h).
#include "ops/host.h"

namespace learnsolve {
namespace {

constexpr int64_t kTile = 32;  // kTileRows of kernels/perceptron.h

struct PointwiseOperands {
  static constexpr const char* name = "pointwise_factor";
  std::vector<Tensor> A, L, weights;
  Tensor values, scale;
  int64_t n, batch, features, widest = 0, lower, main = 0, work = 0;  // work: multiply-adds of a row
  bool by_slot;

  PointwiseOperands(const std::vector<Tensor>& A_, const std::vector<Tensor>& L_, const Tensor& values_,
                    const Tensor& scale_, const std::vector<Tensor>& weights_)
      : values(dense(values_)), scale(dense(scale_)), by_slot(A_.size() == 3) {
    STD_TORCH_CHECK(values.is_cpu(), name, ": tensors must be on the CPU");
    for (const Tensor& t : weights_) weights.push_back(dense(t));
    check_layers();
    check_pattern("A", A_, A, by_slot ? 3 : 2, features);
    check_pattern("L", L_, L, by_slot ? 4 : 2, lower + 1);
    if (by_slot) check_diagonals();
    STD_TORCH_CHECK(A[0].numel() == L[0].numel() && A[0].scalar_type() == L[0].scalar_type(), name,
                    ": A and L must have as many rows and one index type");
    n = A[0].numel() - 1;
    STD_TORCH_CHECK(values.dim() == 2 && values.size(1) == A[1].numel(), name, ": values must be (B, ",
                    A[1].numel(), ")");
    batch = values.size(0);
    check_device(name, values, {&scale});
    STD_TORCH_CHECK(scale.scalar_type() == values.scalar_type() && scale.dim() == 2 &&
                        scale.size(0) == batch && scale.size(1) == n,
                    name, ": scale must be (", batch, ", ", n, ") and of the dtype of values");
  }
  void check_layers() {
    const size_t count = weights.size();
    STD_TORCH_CHECK(count > 0 && count % 2 == 0, name, ": weights must be W1, b1, ..., got ", count,
                    " tensors");
    for (size_t l = 0; l < count; l += 2) {
      const Tensor &W = weights[l], &b = weights[l + 1];
      check_device(name, values, {&W, &b});
      STD_TORCH_CHECK(W.scalar_type() == weights[0].scalar_type() && b.scalar_type() == W.scalar_type(), name,
                      ": weights must have one dtype");
      STD_TORCH_CHECK(W.dim() == 2 && b.dim() == 1 && b.size(0) == W.size(0), name,
                      ": weights must be (f, k) and (f) by turns");
      STD_TORCH_CHECK(l == 0 || W.size(1) == weights[l - 2].size(0), name,
                      ": a layer must take as many numbers as the one before gives, got ", W.size(1), " for ",
                      weights[l - 2].size(0));
      widest = std::max(widest, W.size(0)), work += W.numel();
    }
    features = weights[0].size(1) + by_slot, lower = weights[count - 2].size(0) - 2;
    STD_TORCH_CHECK(
        lower >= 1 && (by_slot || features == 2 * lower + 2), name,
        ": the layers must give 3 numbers or more and, for A without slots, take 2 less than twice as "
        "many, got ",
        lower + 2, " from ", features);
  }
  // crow, col and, if by_slot, slots below `slots` and what else is known of the slots of L.
  void check_pattern(const char* what, const std::vector<Tensor>& given, std::vector<Tensor>& to,
                     size_t count, int64_t slots) const {
    listed(name, what, given, count);
    for (const Tensor& t : given) {
      check_device(name, values, {&t});
      check_index(name, t);
      STD_TORCH_CHECK(t.dim() == 1 && t.scalar_type() == given[0].scalar_type(), name, ": ", what,
                      " must be arrays of one index type");
      to.push_back(dense(t));
    }
    const int64_t rows = to[0].numel() - 1, nnz = to[1].numel();
    STD_TORCH_CHECK(rows >= 0 && Entries(to[0])[0] == 0 && Entries(to[0])[rows] == nnz, name, ": ", what,
                    "'s crow must go from 0 to ", nnz);
    STD_TORCH_CHECK(!by_slot || to[2].numel() == nnz, name, ": ", what, " must have a slot for each entry");
    if (contents_checked) check_bounds(name, "crow", to[0], nnz);
    check_range(name, "col", to[1], 0, rows);
    if (by_slot) check_range(name, "slots", to[2], 0, slots);
  }
  void check_diagonals() {
    STD_TORCH_CHECK(L[3].numel() == lower, name, ": L's diagonals below the main one must be ", lower);
    check_range(name, "diagonals of A", L[3], 0, features + 1);
    const Entries ptr(A[0]), col(A[1]), slot(A[2]);
    if (A[1].numel() == 0) return;
    int64_t p = 0;
    while (p < ptr[1] && col[p] != 0) ++p;
    STD_TORCH_CHECK(p < ptr[1] && slot[p] < features, name, ": A must have its diagonal");
    main = slot[p];
  }

  // f.template operator()<T, V, I>(): the types of the weights, the values and the indices.
  template <class F>
  void dispatch_types(const F& f) const {
    dispatch_dtype(name, weights[0], [&]<class T>() {
      dispatch(name, values, A[0], [&]<class V, class I>() { f.template operator()<T, V, I>(); });
    });
  }
};

}  // namespace

Tensor pointwise_factor(const std::vector<Tensor>& A, const std::vector<Tensor>& L, const Tensor& values,
                        const Tensor& scale, const std::vector<Tensor>& weights, double omega, double unit) {
  const PointwiseOperands P(A, L, values, scale, weights);
  const int64_t n = P.n, nnz = P.A[1].numel(), nnz_of_L = P.L[1].numel();
  Tensor out = new_empty(P.values, Size{P.batch, nnz_of_L});
  if (out.numel() == 0) return out;
  P.dispatch_types([&]<class T, class V, class I>() {
    const Tensor inverse = new_empty(P.scale, Size{P.batch, n}),
                 columns = new_empty(P.weights[0], Size{P.batch, n});
    V* inverses = mutable_data<V>(inverse);
    for (int64_t i = 0; i < P.batch * n; ++i) inverses[i] = 1 / data<V>(P.scale)[i];
    // The weights transposed, with rows filled up, and zeros for the main diagonal.
    std::vector<std::vector<T>> filled;
    std::vector<LayerView<T>> layers;
    for (size_t l = 0; l < P.weights.size(); l += 2) {
      const int64_t f = P.weights[l].size(0), given = P.weights[l].size(1), width = filled_up<T>(f),
                    k = l == 0 ? P.features : given;
      std::vector<T> W(k * width), b(width);
      for (int64_t j = 0; j < f; ++j) {
        for (int64_t i = 0; i < given; ++i)
          W[(i + (given < k && i >= P.main)) * width + j] = data<T>(P.weights[l])[j * given + i];
        b[j] = data<T>(P.weights[l + 1])[j];
      }
      layers.push_back({W.data(), b.data(), k, width});
      filled.push_back(std::move(W)), filled.push_back(std::move(b));
    }
    const int64_t widest = filled_up<T>(P.widest), tiles = (n + kTile - 1) / kTile;
    const auto view = [&](int64_t b) {
      return PointwiseView<T, V, I>{layers.data(),
                                    static_cast<int64_t>(layers.size()),
                                    widest,
                                    P.lower,
                                    P.main,
                                    static_cast<T>(omega),
                                    static_cast<T>(unit),
                                    data<I>(P.A[0]),
                                    data<I>(P.A[1]),
                                    P.by_slot ? data<I>(P.A[2]) : nullptr,
                                    data<I>(P.L[0]),
                                    data<I>(P.L[1]),
                                    P.by_slot ? data<I>(P.L[2]) : nullptr,
                                    P.by_slot ? data<I>(P.L[3]) : nullptr,
                                    data<V>(P.values) + b * nnz,
                                    data<V>(P.scale) + b * n,
                                    data<V>(inverse) + b * n,
                                    mutable_data<T>(columns) + b * n,
                                    mutable_data<V>(out) + b * nnz_of_L};
    };
    // f(view, r0, r1) for all tiles of all members, `cost` multiply-adds each.
    const auto each_tile = [&](int64_t i0, int64_t i1, const auto& f) {
      for (int64_t i = i0; i < i1;) {
        const int64_t b = i / tiles, t = i % tiles, end = std::min(tiles, t + i1 - i);
        f(view(b), t * kTile, std::min(end * kTile, n));
        i += end - t;
      }
    };
    const auto& kernels_of = kernels().get<T, I>().template pointwise<V>();
    const int64_t entries = (nnz + nnz_of_L) / n + 1;
    parallel_for(0, P.batch * tiles, std::max<int64_t>(kGrain / (kTile * (P.work + entries)), 1),
                 [&](int64_t i0, int64_t i1) {
                   std::vector<T> numbers(kTile * (P.features + 1 + 2 * widest));
                   const int64_t most = P.by_slot ? 0 : P.lower, size = largest_room<V>(most);
                   std::vector<V> v(size + most + 1);
                   std::vector<int32_t> place(size + most + 1 + kTile * most);
                   std::vector<typename LargestRoom<V>::Key> key(size);
                   const LargestRoom<V> largest{v.data(), v.data() + size, place.data(), place.data() + size,
                                                key.data()};
                   each_tile(i0, i1, [&](const auto& M, int64_t r0, int64_t r1) {
                     kernels_of.rows(M, r0, r1, {numbers.data(), place.data() + size + most + 1, largest});
                   });
                 });
    parallel_for(0, P.batch * tiles, std::max<int64_t>(kGrain / (kTile * entries), 1),
                 [&](int64_t i0, int64_t i1) { each_tile(i0, i1, kernels_of.columns); });
  });
  return out;
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) {
  m.impl("pointwise_factor", TORCH_BOX(&learnsolve::pointwise_factor));
}
