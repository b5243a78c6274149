// Large arrays in large pages.
#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstddef>
#include <cstdint>

namespace learnsolve {

// Memory that is not mapped yet is mapped in pages of 2 MiB, which makes 512 times fewer faults. This is a
// hint: a system without huge pages ignores it.
inline void prefer_huge_pages(void* data, size_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr size_t page = size_t{2} << 20;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)data, (void)bytes;
#endif
}

}  // namespace learnsolve
