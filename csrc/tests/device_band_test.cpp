// The scan of triangular systems with narrow bands (kernels/band_scan.cuh), in three steps as three launches
// do it, against the host's sweep.
#include "kernels/band_scan.cuh"
#include "tests/triangles.h"

namespace learnsolve::test {
namespace {

constexpr int kLanes = 8, kRows = 2;
constexpr int64_t kChunk = kLanes * kRows;

template <int W, class T, class I>
Array<T> by_scan(const cuda::Triangle<T, I>& S, const Array<T>& b, int64_t k, int64_t c, int64_t full,
                 bool backwards) {
  const cuda::HostTeam<kLanes> team{backwards};
  Array<T> x = b;
  const cuda::Band<W, T, I> A{S, x.data() + c, x.data() + c, k, full};
  const int64_t chunks = (S.rows + kChunk - 1) / kChunk;
  std::vector<cuda::Affine<W, T>> maps(chunks);
  std::vector<cuda::Window<W, T>> ends(chunks);
  cuda::ScanRoom<kLanes, W, T> room;
  for (int64_t t = 0; t < chunks - 1; ++t) cuda::chunk_map<kRows>(team, A, t * kChunk, room, &maps[t]);
  cuda::chunk_ends<kRows>(team, A, chunks - 1, maps.data(), room, ends.data());
  for (int64_t t = chunks; t-- > 0;)
    cuda::solve_chunk<kRows>(team, A, t * kChunk, t == 0 ? cuda::Window<W, T>{} : ends[t - 1], room);
  return x;
}

// One band of up to W, solved for column 1 of member 0.
template <int W, class T, class I>
struct Case {
  static constexpr int64_t k = 3;
  Triangles<T, I>& S;
  int64_t far;   // the distance that all rows have, as far as they reach; 0: none
  int64_t full;  // the width of a band of which no entry is missing, else 0
  std::string name;

  int64_t row(int64_t t) const { return S.upper ? S.n - 1 - t : t; }
  int64_t at(int64_t t) const { return row(t) * k + 1; }
  // In either order of the lanes, and however places are found.
  Array<T> scanned(const Array<T>& b) const {
    const Array<T> x = by_scan<W>(S.on_device(), b, k, 1, 0, false);
    require_same_bits(by_scan<W>(S.on_device(), b, k, 1, 0, true), x, name + ", backwards");
    if (full) require_same_bits(by_scan<W>(S.on_device(), b, k, 1, full, true), x, name + ", without gaps");
    return x;
  }
  // Does row t depend on one that is marked?
  std::vector<bool> reached(int64_t from) const {
    std::vector<bool> marked(S.n);
    for (int64_t t = from; t < S.n; ++t) {
      marked[row(t)] = t == from;
      for (int64_t p = S.ptr[row(t)]; p < S.ptr[row(t) + 1]; ++p)
        if (S.idx[p] != row(t) && marked[S.idx[p]]) marked[row(t)] = true;
    }
    return marked;
  }
  void spreads(const Array<T>& b, int64_t from, const std::string& what) const {
    const Array<T> x = scanned(b), clean = by_rows(b);
    const std::vector<bool> marked = reached(from);
    for (int64_t t = 0; t < S.n; ++t) {
      require((x[at(t)] != x[at(t)]) == marked[row(t)], name + ": " + what + " spreads");
      if (!marked[row(t)]) near(x[at(t)], clean[at(t)], 1, name + ": beside " + what);
    }
  }
  static void near(T x, T known, T size, const std::string& what) {
    require(std::fabs(x - known) <= 200 * std::numeric_limits<T>::epsilon() * size, what);
  }
  // Row after row.
  Array<T> by_rows(Array<T> b) const {
    const cuda::Triangle<T, I> view = S.on_device();
    const cuda::Sides<T> sides{b.data(), b.data(), 0, 0, k};
    for (int64_t t = 0; t < S.n; ++t)
      cuda::solve_row(cuda::HostTeam<1>{}, view, sides, row(t), 1, 0, cuda::NoFlags{});
    return b;
  }

  void run(Random& random) const {
    const int64_t n = S.n;
    const Array<T> b = uniform<T>(random, S.batch * n * k), wanted = S.on_host(b, k);
    Array<T> x = scanned(b);
    for (int64_t t = 0; t < n; ++t) near(x[at(t)], wanted[at(t)], 1, name);
    for (const int64_t t : {int64_t{0}, n / 2, n - 1}) {
      Array<T> with = b;
      with[at(t)] = std::numeric_limits<T>::quiet_NaN();
      spreads(with, t, "NaN");
      if (S.unit) continue;
      T& d = S.values[S.perm[S.upper ? S.ptr[row(t)] : S.ptr[row(t) + 1] - 1]];
      const T before = d;
      d = 0;
      spreads(b, t, "a zero on the diagonal");
      d = before;
    }
    if (far) overflow(1), overflow(far);
  }

  // Factors, those of the farthest entries, whose products overflow in every chunk but the first, of a
  // solution that stays in range: from huge^-1 it goes through huge^0, 1, 0 and -1 in each, in every
  // `some`-th row. And of zero.
  void overflow(int64_t some) const {
    const int64_t n = S.n;
    const T huge = std::pow(std::numeric_limits<T>::max(), T(0.6));
    const int levels[] = {0, 1, 0, -1};
    const auto level = [&](int64_t t) {
      return t < kChunk || t % some > 0 ? -1 : levels[t % kChunk * 4 / kChunk];
    };
    Array<T> start(n * k), zero(n * k);
    for (int64_t t = 0; t < std::min(n, far); ++t) start[at(t)] = 1 / huge;
    for (int64_t t = 0; t < n; ++t) {
      const int64_t i = row(t), farthest = S.upper ? S.ptr[i + 1] - 1 : S.ptr[i];
      const int up = level(t) - (t < far ? 0 : level(t - far));
      for (int64_t p = S.ptr[i]; p < S.ptr[i + 1]; ++p)
        S.values[S.perm[p]] = S.idx[p] == i   ? T(1)
                              : p != farthest ? T(0)
                              : up > 0        ? -huge
                              : up < 0        ? -1 / huge
                                              : T(-1);
    }
    const Array<T> x = scanned(start), nothing = scanned(zero), known = by_rows(start);
    for (int64_t t = 0; t < n; ++t) {
      near(x[at(t)], known[at(t)], std::fabs(known[at(t)]), name + ", overflow");
      require(nothing[at(t)] == 0, name + ", overflow of nothing");
    }
  }
};

// A band of these distances, each entry there with a probability: 1 for all.
template <int W, class T, class I>
void band_case(Random& random, int64_t n, const std::vector<int64_t>& distances, double share) {
  std::vector<int64_t> offsets{0};
  for (const int64_t d : distances) offsets.push_back(d), offsets.push_back(-d);
  std::sort(offsets.begin(), offsets.end());
  Pattern pattern = banded(n, n, offsets);
  std::bernoulli_distribution kept(share);
  for (int64_t i = 0; i < n; ++i)
    std::erase_if(pattern.columns[i], [&](int64_t j) { return j != i && !kept(random); });
  const Structure<I> P = structure<I>(pattern, 48);
  const int64_t width = distances.back();
  const bool full = share == 1 && static_cast<int64_t>(distances.size()) == width;
  for (const bool transpose : {false, true})
    for (const bool upper : {false, true})
      for (const bool unit : {false, true}) {
        Triangles<T, I> S(random, transpose ? transposed(P, 48) : P, upper, unit);
        const std::string name = "a scan of width " + std::to_string(width) + " in a window of " +
                                 std::to_string(W) + (share < 1 ? " with gaps, " : ", ") + std::to_string(n) +
                                 " rows, " + S.name + (transpose ? ", transposed" : "");
        Case<W, T, I>{S, share == 1 ? width : 0, full ? width : 0, name}.run(random);
      }
}

template <class T, class I>
void all_cases(Random& random) {
  for (const int64_t n : {1, 2, 4, 5, 15, 16, 17, 40, 128, 129, 300}) {
    band_case<1, T, I>(random, n, {1}, 1);
    band_case<1, T, I>(random, n, {1}, 0.8);
    band_case<2, T, I>(random, n, {1, 2}, 1);
    band_case<2, T, I>(random, n, {2}, 1);
    band_case<4, T, I>(random, n, {1, 2, 3}, 1);
    band_case<4, T, I>(random, n, {1, 2, 3, 4}, 1);
    band_case<4, T, I>(random, n, {4}, 1);
    band_case<4, T, I>(random, n, {1, 3, 4}, 0.7);
  }
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(device_band) {
  using namespace learnsolve::test;
  Random random(29);
  all_cases<float, int32_t>(random);
  all_cases<double, int64_t>(random);
}
