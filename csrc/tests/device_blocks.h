// A persistent CUDA kernel on the host, each of its blocks a thread: ThreadSanitizer sees where a barrier is
// missing between two of them.
#pragma once

#include <barrier>
#include <thread>
#include <vector>

#include "kernels/grid.cuh"

namespace learnsolve::test {

inline std::barrier<>* all_blocks = nullptr;

// kernel() on `blocks` blocks.
template <class F>
void on_blocks(int64_t blocks, const F& kernel) {
  std::barrier<> barrier(blocks);
  all_blocks = &barrier;
  std::vector<std::thread> threads;
  for (int64_t block = 0; block < blocks; ++block)
    threads.emplace_back([&, block] {
      cuda::host_grid = {block, blocks, [] { all_blocks->arrive_and_wait(); }};
      kernel();
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace learnsolve::test
