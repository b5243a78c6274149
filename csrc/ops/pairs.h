// Vectors of several iterations of a loop, kept until the gradient on a pattern is added up for all of them.
#pragma once

#include "ops/check.h"

namespace learnsolve {

// Vectors of several iterations, each of `size` numbers: that of iteration i, until `count` later ones.
template <class T>
struct Ring {
  int64_t count, size;
  std::vector<std::vector<T>> slots;
  Ring(int64_t count_, int64_t size_) : count(count_), size(size_), slots(count_) {}
  T* operator[](int64_t i) {
    std::vector<T>& slot = slots[i % count];
    slot.resize(size);
    return slot.data();
  }
};

// out_p += <u_i, v_j> for pairs (u, v) that stay where they are until flush.
template <class T, class I>
struct Pairs {
  const Structure& S;
  int64_t k;
  T* out;
  std::vector<const T*> u, v;
  void add(const T* a, const T* b) { u.push_back(a), v.push_back(b); }
  void flush() {
    const int64_t pairs = static_cast<int64_t>(u.size());
    if (pairs == 0) return;
    parallel_blocks<I>(S, k * pairs, [&](int64_t b0, int64_t b1) {
      kernels().get<T, I>().sddmm_pairs(data<I>(S.ptr), data<I>(S.idx), S.row_blocks<I>(), b0, b1, u.data(),
                                        v.data(), pairs, k, out);
    });
    u.clear(), v.clear();
  }
};

}  // namespace learnsolve
