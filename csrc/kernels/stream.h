// Copies past the cache, for results that nothing reads before they have left it.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace learnsolve {

// A store into memory that no cache holds first reads its line, which this one does not.
template <class T>
void stream(const T* from, int64_t count, T* to) {
#if defined(__SSE2__)
  constexpr int64_t lanes = 16 / sizeof(T);
  int64_t i = 0;
  for (; i < count && reinterpret_cast<uintptr_t>(to + i) % 16 != 0; ++i) to[i] = from[i];
  for (; i + lanes <= count; i += lanes)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  for (; i < count; ++i) to[i] = from[i];
  _mm_sfence();  // other threads read it next
#else
  if (count > 0) std::memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
#endif
}

}  // namespace learnsolve
