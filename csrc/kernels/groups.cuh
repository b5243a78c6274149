// Sums over a batch. Members that add up are cut into a few groups, whose number depends on sizes alone. A
// team works through one group and writes what it adds up to a slot of that group; then one kernel adds the
// slots, in order. So no team has the whole batch, and every run gives the same bits.
//
// On the host (ops/batch_sum.cuh), for a kernel that gives `size` numbers for each member, or adds them up:
//
//   const Groups groups(batch, out_step == 0 ? size : 0);
//   const BatchSum<T> sum(like, out, out_step, size, groups);
//   LS_LAUNCH(dim3(blocks, 1, blocks_aside(groups.count)), kThreads, device.stream,
//             (groups, sum.result, ...), kernel<T>);
//   sum.finish(device);
//
// and in the kernel, for number o of the result:
//
//   for_members(groups, [&](Members members) {
//     T sum = 0;
//     for (int64_t b = members.b0; b < members.b1; ++b) sum += ...;
//     result.of(members)[o] = sum;
//   });
//
// If nothing adds up, every group is one member, and the slots are the results.
#pragma once

#include "kernels/launch.cuh"

namespace learnsolve::cuda {

struct Groups {
  static constexpr int64_t kMost = 32;
  static constexpr int64_t kSlots = int64_t{1} << 22;  // numbers in all slots; more make work for any device
  int64_t batch = 1, each = 1, count = 1;

  Groups() = default;
  // added: how many numbers the members add up, or 0.
  Groups(int64_t batch_, int64_t added) : batch(batch_), count(batch_) {
    if (added == 0 || batch == 0) return;
    const int64_t most = std::min(batch, std::clamp<int64_t>(kSlots / added, 1, kMost));
    each = (batch + most - 1) / most;
    count = (batch + each - 1) / each;
  }
  LS_BOTH Members members(int64_t g) const {
    return {g * each, (g + 1) * each < batch ? (g + 1) * each : batch, g};
  }
};

// f(members) for the groups, along the third axis of the grid.
template <class F>
LS_DEVICE void for_members(const Groups& groups, const F& f) {
  for (int64_t g = blockIdx.z; g < groups.count; g += gridDim.z) f(groups.members(g));
}

// A result of each member, or of each group if `adds`.
template <class T>
struct BatchResult {
  T* p = nullptr;
  int64_t step = 0;
  bool adds = false;
  // Where one kernel has several results, of which some add up:
  LS_DEVICE T* of(int64_t b, const Members& members) const { return p + (adds ? members.group : b) * step; }
  LS_DEVICE bool goes_on(int64_t b, const Members& members) const { return adds && b > members.b0; }
  LS_DEVICE bool ends(int64_t b, const Members& members) const { return !adds || b + 1 == members.b1; }
  // Where it has one:
  LS_DEVICE T* of(const Members& members) const { return p + members.group * step; }
};

// out = the sum of the slots, one after another.
template <class T>
LS_KERNEL(kThreads)
add_groups_kernel(const T* slots, int64_t count, int64_t size, T* out) {
  for_items<1>(size, [&](const auto&, int64_t o) {
    T sum = slots[o];
    for (int64_t g = 1; g < count; ++g) sum += slots[g * size + o];
    out[o] = sum;
  });
}

}  // namespace learnsolve::cuda
