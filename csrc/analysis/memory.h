// Large arrays in large pages, and arrays for results of unknown length.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

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

namespace learnsolve::analysis {

// An array that grows without being written: memory that is never used costs nothing, and pages stay where
// they are. Whoever writes reserves first.
template <class E>
class Growing {
 public:
  Growing() = default;
  Growing(Growing&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), capacity_(std::exchange(other.capacity_, 0)) {}
  Growing(const Growing&) = delete;
  Growing& operator=(const Growing&) = delete;
  ~Growing() { std::free(data_); }
  E* data() { return data_; }
  const E* data() const { return data_; }
  int64_t capacity() const { return capacity_; }
  E& operator[](int64_t i) { return data_[i]; }
  const E& operator[](int64_t i) const { return data_[i]; }
  void reserve(int64_t n) {
    if (n > capacity_) resize(std::max(n, capacity_ + capacity_ / 2));
  }
  void swap(Growing& other) { std::swap(data_, other.data_), std::swap(capacity_, other.capacity_); }
  // Releases the array, cut to n entries; the caller must free() it.
  E* release(int64_t n) {
    if (n < capacity_ || !data_) resize(std::max<int64_t>(n, 1));
    return std::exchange(data_, nullptr);
  }

 private:
  void resize(int64_t n) {
    void* moved = std::realloc(data_, static_cast<size_t>(n) * sizeof(E));
    if (!moved) throw std::bad_alloc();
    data_ = static_cast<E*>(moved);
    capacity_ = n;
    prefer_huge_pages(moved, static_cast<size_t>(n) * sizeof(E));
  }
  E* data_ = nullptr;
  int64_t capacity_ = 0;
};

}  // namespace learnsolve::analysis
