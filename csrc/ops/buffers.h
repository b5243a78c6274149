// Memory of large results on the CPU, kept for later ones when their tensors are freed.
//
// The system zeroes memory that it gives out, and maps it when it is first written to. glibc keeps blocks of
// up to 32 MiB, more or less; larger ones go back to the system as soon as they are free, so every call pays
// for that again. 200 recorded iterations of conjugate gradients, n = 33,124, float64, which keep twice 53
// MB, take 58 us each with kept memory, 92 without (both with huge pages; 53 where nothing is recorded), and
// with the adjoint 166 and 203; both gradients of a 1000 x 1000 grid 3.8 and 6.7 ms.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <list>
#include <mutex>
#include <new>

#include "analysis/memory.h"

namespace learnsolve {

// Free blocks, up to a limit in bytes, the one freed last at the end. One for the process, which is never
// destroyed: a tensor may be freed after everything else.
class Buffers {
 public:
  static constexpr size_t kLeast = size_t{256} << 10;  // bytes of a block worth keeping
  static constexpr size_t kHuge = size_t{4} << 20;     // bytes of one worth huge pages
  // Of memory that is not kept: glibc keeps smaller blocks, whose pages are there already.
  static constexpr size_t kHugeUnkept = size_t{32} << 20;

  static Buffers& get() {
    static Buffers& one = *new Buffers;
    return one;
  }

  // Sizes are rounded up to one of eight between powers of two, so that a block fits more than one result.
  static size_t rounded(size_t bytes) {
    size_t step = kLeast / 8;
    while (bytes > 16 * step) step *= 2;
    return (bytes + step - 1) / step * step;
  }

  bool keeps(size_t bytes) const { return bytes >= kLeast && bytes <= limit_; }

  // Memory of a rounded size: the block of this size that was freed last, since a cache may hold it. Null:
  // there is none left.
  void* take(size_t bytes) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (auto block = free_.end(); block != free_.begin();)
        if ((--block)->bytes == bytes) {
          void* data = block->data;
          free_.erase(block);
          total_ -= bytes;
          return data;
        }
    }
    void* data = nullptr;
    if (posix_memalign(&data, bytes < kHuge ? 64 : size_t{2} << 20, bytes) != 0) return nullptr;
    if (bytes >= kHuge) prefer_huge_pages(data, bytes);
    return data;
  }

  // Called where a tensor dies, which must not throw.
  void give_back(void* data, size_t bytes) noexcept {
    std::list<Block> given, dropped;
    try {
      given.push_back({data, bytes});
    } catch (const std::bad_alloc&) {
      std::free(data);
      return;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      free_.splice(free_.end(), given);
      total_ += bytes;
      dropped = beyond(limit_);
    }
    for (const Block& block : dropped) std::free(block.data);
  }

  // Returns the limit until now.
  size_t set_limit(size_t limit) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t before = limit_;
    limit_ = limit;
    for (const Block& block : beyond(limit)) std::free(block.data);
    return before;
  }
  void drop() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Block& block : beyond(0)) std::free(block.data);
  }
  size_t total() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return total_;
  }

 private:
  struct Block {
    void* data;
    size_t bytes;
  };
  std::mutex mutex_;
  std::list<Block> free_;  // what is dropped is spliced: nothing is allocated under the lock
  size_t total_ = 0;
  std::atomic<size_t> limit_{0};

  // A child of fork finds the mutex open, whatever other threads did, and no block: to write to the parent's
  // would copy them page by page.
  Buffers() {
    pthread_atfork([] { get().mutex_.lock(); }, [] { get().mutex_.unlock(); },
                   [] {
                     Buffers& own = get();
                     for (const Block& block : own.beyond(0)) std::free(block.data);
                     own.mutex_.unlock();
                   });
  }

  // The blocks that were freed first, until no more than `limit` bytes are left.
  std::list<Block> beyond(size_t limit) {
    auto end = free_.begin();
    for (; total_ > limit; ++end) total_ -= end->bytes;
    std::list<Block> dropped;
    dropped.splice(dropped.end(), free_, free_.begin(), end);
    return dropped;
  }
};

}  // namespace learnsolve
