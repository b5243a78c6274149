// Threads that work together.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/both.h"

#ifndef __CUDACC__
#include "emulator/cuda.h"
// Where a team waits: for messages of the emulator.
#define LS_WHERE , const std::source_location& where = std::source_location::current()
#define LS_HERE , where
#else
#define LS_WHERE
#define LS_HERE
#endif

namespace learnsolve::cuda {

// Some numbers that are loaded and stored together, by one instruction where they make 16 bytes.
template <class T, int N>
struct alignas(N == 1 ? alignof(T) : 16) Pack {
  T v[N];
};

// On the host by memcpy, which GCC makes one access too: for the emulator's meter.
template <int N, class T>
LS_DEVICE Pack<T, N> load_pack(const T* p) {
#ifdef __CUDACC__
  return *reinterpret_cast<const Pack<T, N>*>(p);
#else
  Pack<T, N> value;
  std::memcpy(&value, p, sizeof(value));
  return value;
#endif
}
// In PTX, because nvcc may take any other store of several numbers apart, one of a float4 too.
template <int N, class T>
LS_DEVICE void store_pack(T* p, const Pack<T, N>& value) {
#ifdef __CUDACC__
  if constexpr (N == 1) {
    *p = value.v[0];
  } else {
    const auto halves = __builtin_bit_cast(ulonglong2, value);
    asm volatile("st.global.v2.b64 [%0], {%1, %2};"
                 :
                 : "l"(__cvta_generic_to_global(p)), "l"(halves.x), "l"(halves.y)
                 : "memory");
  }
#else
  std::memcpy(p, &value, sizeof(value));
#endif
}

// Can packs be read from here on, and at multiples of `step` numbers from here?
template <class T>
bool takes_packs(const T* p, int64_t step = 0) {
  return (reinterpret_cast<uintptr_t>(p) | static_cast<uintptr_t>(step) * sizeof(T)) % 16 == 0;
}

// N neighboring lanes of one warp, all of which take part in every sum: N is 1, 2, ..., 32.
template <int N>
struct Team {
  static constexpr int size = N;
  const int lane;
  const unsigned mask;
  LS_DEVICE Team()
      : lane(static_cast<int>(threadIdx.x % N)),
        mask(N == 32 ? 0xffffffffu : ((1u << (N % 32)) - 1u) << (threadIdx.x % 32 / N * N)) {}
  LS_DEVICE bool first() const { return lane == 0; }
  // Of all lanes, in a fixed tree; all of them receive it.
  template <class T>
  LS_DEVICE T sum(T s LS_WHERE) const {
    LS_UNROLL
    for (int h = N / 2; h > 0; h /= 2) s += __shfl_xor_sync(mask, s, h, N LS_HERE);
    return s;
  }
  // sum(parts[lane % M]), for less: each step of the tree halves the sums that a lane goes on with. M <= N.
  template <int M, class T>
  LS_DEVICE T sums(T (&parts)[M] LS_WHERE) const {
    int h = N / 2;
    LS_UNROLL
    for (int left = M / 2; left > 0; left /= 2, h /= 2) {
      const bool upper = (lane & h) != 0;
      LS_UNROLL
      for (int i = 0; i < left; ++i) {
        const T given = upper ? parts[i] : parts[i + left], kept = upper ? parts[i + left] : parts[i];
        parts[i] = kept + __shfl_xor_sync(mask, given, h, N LS_HERE);
      }
    }
    T sum = parts[0];
    LS_UNROLL
    for (; h > 0; h /= 2) sum += __shfl_xor_sync(mask, sum, h, N LS_HERE);
    return of_lane(sum, lane % M * (N / M) LS_HERE);
  }
  template <class T>
  LS_DEVICE T of_lane(T s, int at LS_WHERE) const {
    return __shfl_sync(mask, s, at, N LS_HERE);
  }
};

}  // namespace learnsolve::cuda
