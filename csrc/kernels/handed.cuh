// Numbers that threads of one launch hand to one another: whoever needs one polls it until it is stored. A
// place that nothing has been stored in holds the NaN whose bits are all set; no number that is stored is
// that one. A number is there as a whole or not at all, so nothing else tells that it is, and no fence is
// needed.
//
// Whoever is waited for must be running or have run: blocks take what they compute by tickets (take_ticket),
// in an order in which nothing waits for what is later, so that no block waits for one that has not begun.
#pragma once

#include <type_traits>

#include "kernels/launch.cuh"

namespace learnsolve::cuda {

template <class T>
using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

template <class T>
LS_DEVICE Bits<T> peek(const T* p) {
#ifdef __CUDACC__
  return *reinterpret_cast<const volatile Bits<T>*>(p);
#else
  return __atomic_load_n(reinterpret_cast<const Bits<T>*>(p), __ATOMIC_RELAXED);
#endif
}

template <class T>
LS_DEVICE void hand_over(T* p, T value) {
  auto bits = __builtin_bit_cast(Bits<T>, value);
  if (bits == static_cast<Bits<T>>(-1)) --bits;  // another NaN
#ifdef __CUDACC__
  *reinterpret_cast<volatile Bits<T>*>(p) = bits;
#else
  __atomic_store_n(reinterpret_cast<Bits<T>*>(p), bits, __ATOMIC_RELAXED);
#endif
}

// What is stored at p, where `seen` was.
template <class T>
LS_DEVICE T awaited(const T* p, Bits<T> seen LS_WHERE) {
  while (seen == static_cast<Bits<T>>(-1)) {
#ifndef __CUDACC__
    learnsolve::emulator::spin(p, where);
#endif
    seen = peek(p);
  }
  return __builtin_bit_cast(T, seen);
}

// The next of `total` pieces of work, the same for all threads of the block; from `total` on there are none.
// Tickets begin at 0, and are at 0 again when all blocks have been told that there are none.
LS_DEVICE unsigned take_ticket(unsigned* tickets, unsigned total) {
  LS_SHARED(taken, unsigned);
  __syncthreads();
  if (threadIdx.x == 0) taken = atomicInc(tickets, total + gridDim.x - 1);
  __syncthreads();
  return taken;
}

}  // namespace learnsolve::cuda
