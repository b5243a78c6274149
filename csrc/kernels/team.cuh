// Threads that work together, written so that the same code runs on a device and, lane by lane, on the host.
//
// A body is a function of a team and its arguments. What each lane has of its own is an Own<T>; `each` runs a
// phase for every lane; between two phases lanes exchange data: a sum, the value of another lane, or memory
// that they share, after `sync`. On a device every thread is one lane. On the host one call runs all lanes of
// a phase in turn, forwards or backwards: a phase whose lanes interfere gives different results in one of the
// two orders, and the tests compare them (csrc/tests).
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define LS_DEVICE __device__ __forceinline__
#define LS_BOTH __host__ __device__ __forceinline__
#define LS_UNROLL _Pragma("unroll")
#else
#define LS_DEVICE inline
#define LS_BOTH inline
#define LS_UNROLL
#endif

namespace learnsolve::cuda {

// Some numbers that are loaded and stored together, by one instruction where they make 16 bytes.
template <class T, int N>
struct alignas(N == 1 ? alignof(T) : 16) Pack {
  T v[N];
};

template <int N, class T>
LS_DEVICE Pack<T, N> load_pack(const T* p) {
  return *reinterpret_cast<const Pack<T, N>*>(p);
}
template <int N, class T>
LS_DEVICE void store_pack(T* p, const Pack<T, N>& value) {
  *reinterpret_cast<Pack<T, N>*>(p) = value;
}

// Can packs be read from here on, and at multiples of `step` numbers from here?
template <class T>
bool takes_packs(const T* p, int64_t step = 0) {
  return (reinterpret_cast<uintptr_t>(p) | static_cast<uintptr_t>(step) * sizeof(T)) % 16 == 0;
}

#ifdef __CUDACC__

// What all teams have in common on a device.
struct Lane {
  int lane;
  template <class T>
  struct Own {
    T value{};
    __device__ __forceinline__ T& operator[](int) { return value; }
  };
  template <class F>
  __device__ __forceinline__ void each(const F& f) const {
    f(lane);
  }
  template <class F>
  __device__ __forceinline__ void first(const F& f) const {
    if (lane == 0) f();
  }
};

// N neighboring lanes of one warp, all of which take part in every sum: N is 1, 2, ..., 32.
template <int N>
struct WarpTeam : Lane {
  static constexpr int size = N;
  unsigned mask;
  __device__ __forceinline__ WarpTeam()
      : Lane{static_cast<int>(threadIdx.x % N)},
        mask(N == 32 ? 0xffffffffu : ((1u << (N % 32)) - 1u) << (threadIdx.x % 32 / N * N)) {}
  __device__ __forceinline__ void sync() const { __syncwarp(mask); }
  template <class T>
  __device__ __forceinline__ T sum(Own<T> s) const {
    LS_UNROLL
    for (int h = N / 2; h > 0; h /= 2) s.value += __shfl_xor_sync(mask, s.value, h, N);
    return s.value;
  }
  template <class T>
  __device__ __forceinline__ T of_lane(const Own<T>& s, int at) const {
    return __shfl_sync(mask, s.value, at, N);
  }
};

// All threads of a block.
template <int N>
struct BlockTeam : Lane {
  static constexpr int size = N;
  __device__ __forceinline__ BlockTeam() : Lane{static_cast<int>(threadIdx.x)} {}
  __device__ __forceinline__ void sync() const { __syncthreads(); }
};

#else

template <int N>
struct HostTeam {
  static constexpr int size = N;
  bool backwards = false;

  template <class T>
  struct Own {
    T value[N] = {};
    T& operator[](int lane) { return value[lane]; }
  };
  template <class F>
  void each(const F& f) const {
    for (int l = 0; l < N; ++l) f(backwards ? N - 1 - l : l);
  }
  template <class F>
  void first(const F& f) const {
    f();
  }
  void sync() const {}
  // In the order of the device.
  template <class T>
  T sum(Own<T> s) const {
    for (int h = N / 2; h > 0; h /= 2)
      for (int l = 0; l < h; ++l) s.value[l] += s.value[l + h];
    return s.value[0];
  }
  template <class T>
  T of_lane(const Own<T>& s, int at) const {
    return s.value[at];
  }
};

#endif

}  // namespace learnsolve::cuda
