// What the probes share: memory, matrices made on the device, times, lines of a table. nvcc compiles them for
// a device; a compiler of C++ for the emulator (csrc/emulator), where they check results and times mean
// nothing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/launch.cuh"

namespace probe {

using namespace learnsolve::cuda;

#ifdef __CUDACC__
constexpr int kRounds = 6, kEach = 5;  // of launches that are timed
constexpr bool kEmulated = false;
// After an error that is not one of a launch alone nothing runs any more.
inline void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("STOPPED: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
inline void* allocate(size_t bytes) {
  void* p = nullptr;
  must(cudaMalloc(&p, bytes), "cudaMalloc");
  return p;
}
inline void release(void* p) { cudaFree(p); }
inline void copy(void* to, const void* from, size_t bytes) {
  must(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
}
inline void poison(void* p, size_t bytes) { must(cudaMemset(p, 0xff, bytes), "cudaMemset"); }
inline void finish(const char* what) { must(cudaDeviceSynchronize(), what); }
// Of a capture, and of everything but the legacy stream, which none can capture.
inline cudaStream_t stream() {
  static const cudaStream_t made = [] {
    cudaStream_t s;
    must(cudaStreamCreate(&s), "cudaStreamCreate");
    return s;
  }();
  return made;
}
// Microseconds of a launch, without the host: the median of graphs of launches, which take turns between sets
// of operands. NaN if they cannot be captured.
template <class F>
double microseconds(const F& launch, int each = kEach) {
  cudaGraph_t graph;
  cudaGraphExec_t made;
  must(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < each; ++i) launch(i);
  if (cudaStreamEndCapture(stream(), &graph) != cudaSuccess || graph == nullptr ||
      cudaGraphInstantiate(&made, graph, 0) != cudaSuccess) {
    cudaGetLastError();
    return NAN;
  }
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  std::vector<float> times;
  for (int round = -1; round < kRounds; ++round) {
    cudaEventRecord(begin, stream());
    cudaGraphLaunch(made, stream());
    cudaEventRecord(end, stream());
    must(cudaEventSynchronize(end), "graph");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    if (round >= 0) times.push_back(ms);
  }
  cudaEventDestroy(begin), cudaEventDestroy(end), cudaGraphExecDestroy(made), cudaGraphDestroy(graph);
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return 1e3 * times[kRounds / 2] / each;
}
#else
constexpr bool kEmulated = true;
inline void* allocate(size_t bytes) { return std::aligned_alloc(512, (bytes + 511) / 512 * 512); }
inline void release(void* p) { std::free(p); }
inline void copy(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
inline void poison(void* p, size_t bytes) { std::memset(p, 0xff, bytes); }
inline void finish(const char*) {}
inline cudaStream_t stream() { return nullptr; }
template <class F>
double microseconds(const F& launch, int = 1) {
  return launch(1), NAN;
}
inline const char* cudaGetErrorString(cudaError_t) { return "refused"; }
#endif

// Numbers on the device, with room behind them for loads of 16 bytes.
template <class T>
struct Buffer {
  T* p = nullptr;
  int64_t n = 0;
  explicit Buffer(int64_t count) : p(static_cast<T*>(allocate(count * sizeof(T) + 64))), n(count) {}
  explicit Buffer(const std::vector<T>& from) : Buffer(static_cast<int64_t>(from.size())) {
    copy(p, from.data(), from.size() * sizeof(T));
  }
  Buffer(const Buffer&) = delete;
  Buffer(Buffer&& other) noexcept : p(std::exchange(other.p, nullptr)), n(other.n) {}
  ~Buffer() { release(p); }
  std::vector<T> host() const {
    std::vector<T> to(n);
    copy(to.data(), p, n * sizeof(T));
    return to;
  }
};

LS_BOTH uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

template <class T>
LS_KERNEL(kThreads)
numbers_kernel(T* to, int64_t n, int seed) {
  for_items<1>(n, [&](const auto&, int64_t i) {
    to[i] = static_cast<T>(static_cast<double>(mix(i * 8 + seed) >> 40) / (1 << 23) - 1);
  });
}
// In [-1, 1).
template <class T>
void fill(const Buffer<T>& to, int seed) {
  LS_LAUNCH(blocks_for(to.n, kThreads), kThreads, stream(), (to.p, to.n, seed), numbers_kernel<T>);
}

enum Kind { kGrid, kTwelve, kSpread, kPower, kBand };

// A matrix by its name: a grid of nx ny nz points whose rows have the entries at `points` places around them,
// or n rows of random columns, as in benchmarks/gpu_run.py.
struct Shape {
  const char* name;
  Kind kind;
  int64_t n;
  int nx = 1, ny = 1, nz = 1, points = 0;
  signed char at[27][3] = {};
  LS_BOTH int diagonal(int e) const { return (at[e][0] * ny + at[e][1]) * nx + at[e][2]; }
};

// Of the neighbors along the axes, or of all around.
inline Shape grid(const char* name, int nz, int ny, int nx, bool all = false) {
  Shape S{name, kGrid, int64_t{nx} * ny * nz, nx, ny, nz};
  for (int z = -(nz > 1); z <= (nz > 1); ++z)
    for (int y = -(ny > 1); y <= (ny > 1); ++y)
      for (int x = -1; x <= 1; ++x)
        if (all || std::abs(x) + std::abs(y) + std::abs(z) <= 1) {
          S.at[S.points][0] = z, S.at[S.points][1] = y, S.at[S.points][2] = x;
          ++S.points;
        }
  return S;
}

LS_BOTH bool inside(const Shape& S, int64_t i, int e) {
  const int64_t x = i % S.nx + S.at[e][2], y = i / S.nx % S.ny + S.at[e][1], z = i / S.nx / S.ny + S.at[e][0];
  return x >= 0 && x < S.nx && y >= 0 && y < S.ny && z >= 0 && z < S.nz;
}

template <class I>
LS_KERNEL(kThreads)
lengths_kernel(LS_ARGUMENT Shape S, I* lengths) {
  for_items<1>(S.n, [&](const auto&, int64_t i) {
    const double u = static_cast<double>(mix(i) >> 11) / (int64_t{1} << 53);
    int64_t length = 12;
    if (S.kind == kGrid) {
      length = 0;
      for (int e = 0; e < S.points; ++e) length += inside(S, i, e);
    } else if (S.kind == kSpread) {
      length = static_cast<int64_t>(-12 * log1p(-u));
      length = length < 1 ? 1 : length > 60 ? 60 : length;
    } else if (S.kind == kPower) {
      length = static_cast<int64_t>(4 * pow(1 - u, -0.7));
      length = length > S.n / 4 ? S.n / 4 : length;
    } else if (S.kind == kBand) {
      length = static_cast<int64_t>(24 * u) + 1;
    }
    lengths[i] = static_cast<I>(length);
  });
}

// Columns in order; mask: which of the places of a grid a row has.
template <class I>
LS_KERNEL(kThreads)
columns_kernel(LS_ARGUMENT Shape S, const I* ptr, I* idx, unsigned* mask) {
  for_items<1>(S.n, [&](const auto&, int64_t i) {
    I p = ptr[i];
    const int64_t length = ptr[i + 1] - p;
    unsigned bits = 0;
    if (S.kind == kGrid) {
      for (int e = 0; e < S.points; ++e)
        if (inside(S, i, e)) idx[p++] = static_cast<I>(i + S.diagonal(e)), bits |= 1u << e;
    } else {  // one in each of `length` equal parts of all columns, or of those near the diagonal
      const int64_t width = S.kind == kBand && S.n > 4001 ? 4001 : S.n;
      int64_t first = width < S.n ? i - 2000 : 0;
      first = first < 0 ? 0 : first > S.n - width ? S.n - width : first;
      for (int64_t e = 0; e < length; ++e) {
        const int64_t lo = e * width / length, hi = (e + 1) * width / length;
        idx[p + e] = static_cast<I>(first + lo + static_cast<int64_t>(mix(i * 977 + e) % (hi - lo)));
      }
    }
    mask[i] = bits;
  });
}

// Pointers after the rows of these lengths.
inline std::vector<int> pointers(const std::vector<int>& lengths) {
  std::vector<int> ptr(lengths.size() + 1);
  for (size_t i = 0; i < lengths.size(); ++i) ptr[i + 1] = ptr[i] + lengths[i];
  return ptr;
}

struct Matrix {
  Shape shape;
  std::vector<int> rows;  // pointers, on the host
  Buffer<int> ptr, idx;
  Buffer<unsigned> mask;

  explicit Matrix(const Shape& S) : shape(S), rows(make(S)), ptr(rows), idx(rows.back()), mask(S.n) {
    LS_LAUNCH(blocks_for(S.n, kThreads), kThreads, stream(), (S, ptr.p, idx.p, mask.p), columns_kernel<int>);
    finish(S.name);
  }
  int64_t n() const { return shape.n; }
  int64_t nnz() const { return rows.back(); }
  int mean() const { return static_cast<int>(nnz() / n()); }

 private:
  static std::vector<int> make(const Shape& S) {
    const Buffer<int> lengths(S.n);
    LS_LAUNCH(blocks_for(S.n, kThreads), kThreads, stream(), (S, lengths.p), lengths_kernel<int>);
    finish(S.name);
    return pointers(lengths.host());
  }
};

template <class T>
LS_KERNEL(kThreads)
compare_kernel(const T* found, const double* wanted, const double* size, int64_t n, double tolerance,
               int* bad) {
  for_items<1>(n, [&](const auto&, int64_t i) {
    if (!(fabs(found[i] - wanted[i]) <= tolerance * size[i])) *bad = 1;
  });
}

// Results in double with the sums of their terms' sizes, and what agrees with them.
struct Reference {
  Buffer<double> wanted, size;
  explicit Reference(int64_t n) : wanted(n), size(n) {}
  template <class T>
  bool agrees(const T* found) const {
    const Buffer<int> bad(std::vector<int>{0});
    LS_LAUNCH(blocks_for(wanted.n, kThreads), kThreads, stream(),
              (found, wanted.p, size.p, wanted.n, sizeof(T) == 4 ? 1e-5 : 1e-13, bad.p), compare_kernel<T>);
    finish("comparison");
    return bad.host()[0] == 0;
  }
};

// A line of the table: what it took, and the least that the memory's bandwidth allows.
inline void line(const char* name, int bytes, const char* variant, double us, double least,
                 const char* state) {
  std::printf("| %-26s | f%d | %-26s | %9.2f | %9.2f | %5.2f | %s |\n", name, 8 * bytes, variant, us, least,
              least / us, state);
  std::fflush(stdout);
}
inline void head() {
  std::printf(
      "| case | type | variant | us | least us | least/us | state |\n|---|---|---|---|---|---|---|\n");
}

// Times launch(set), which must give right(), after its results were poisoned.
template <class F, class G>
void measure(const char* name, int bytes, const char* variant, double least, const F& launch,
             const G& right) {
  launch(0);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return line(name, bytes, variant, NAN, least, cudaGetErrorString(error));
  finish(variant);
  const bool good = right();
  line(name, bytes, variant, microseconds(launch), least, good ? "right" : "WRONG");
}

// Bytes a second of a copy, read and written, which the least times are for.
inline double copy_rate() {
#ifdef __CUDACC__
  const int64_t bytes = int64_t{1} << 30;
  const Buffer<char> from(bytes), to(bytes);
  return 2e6 * bytes /
         microseconds([&](int) { cudaMemcpyAsync(to.p, from.p, bytes, cudaMemcpyDeviceToDevice, stream()); });
#else
  return 4e12;
#endif
}

// f(A, bytes a second of a copy) for the matrices whose names begin as `only`, in small for the emulator; the
// last of them are small everywhere.
template <class F>
void for_matrices(const char* only, const F& f) {
  const double rate = copy_rate();
  const bool e = kEmulated;
  const int side = e ? 70 : 3162, cube = e ? 15 : 150, n = e ? 5000 : 2000000, few = e ? 300 : 32768;
  std::printf("copy: %.0f GB/s\n", rate / 1e9);
  head();
  for (const Shape& S :
       {grid("5 points", 1, side, side), grid("7 points", cube, cube, cube),
        grid("9 points", 1, 2 * side / 3, 2 * side / 3, true), grid("27 points", cube, cube, cube / 2, true),
        Shape{"12 a row", kTwelve, n}, Shape{"1 to 60 a row", kSpread, n}, Shape{"power law", kPower, n},
        Shape{"near the diagonal", kBand, n}, grid("5 points, middle", 1, e ? 20 : 700, 700),
        grid("5 points, small", 1, e ? 20 : 181, 181), grid("3 points, small", 1, 1, few),
        Shape{"1 to 60 a row, small", kSpread, few}})
    if (only == nullptr || std::strncmp(S.name, only, std::strlen(only)) == 0) f(Matrix(S), rate);
}

}  // namespace probe
