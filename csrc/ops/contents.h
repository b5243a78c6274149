// Contents of index arrays and plans on the CPU, checked where LEARNSOLVE_CHECK=1 asks for it: those of a
// pattern fit by construction, but operators are public, and a wrong index makes a kernel read foreign
// memory. One pass over each array, or over the products of a plan.
#pragma once

#include "ops/structure.h"

namespace learnsolve {

extern bool contents_checked;  // isa.cpp

// Entries of an int32 or int64 array.
class Entries {
 public:
  explicit Entries(const Tensor& t) : wide_(t.scalar_type() == ScalarType::Long), at_(t.data_ptr()) {}
  int64_t operator[](int64_t i) const {
    return wide_ ? static_cast<const int64_t*>(at_)[i] : static_cast<const int32_t*>(at_)[i];
  }

 private:
  bool wide_;
  const void* at_;
};

// low <= t < high, everywhere
inline void check_range(const char* name, const char* what, const Tensor& t, int64_t low, int64_t high) {
  if (!contents_checked) return;
  const auto check = [&]<class I>() {
    const I* at = data<I>(t);
    I least = 0, most = 0;
    for (int64_t i = 0; i < t.numel(); ++i) {
      least = i == 0 ? at[0] : std::min(least, at[i]);
      most = i == 0 ? at[0] : std::max(most, at[i]);
    }
    STD_TORCH_CHECK(t.numel() == 0 || (least >= low && most < high), name, ": ", what, " must be from ", low,
                    " to ", high - 1, ", got ", least, " to ", most);
  };
  t.scalar_type() == ScalarType::Long ? check.template operator()<int64_t>()
                                      : check.template operator()<int32_t>();
}
inline void check_range(const char* name, const char* what, const std::optional<Tensor>& t, int64_t low,
                        int64_t high) {
  if (t) check_range(name, what, *t, low, high);
}

// Numbers 0, ..., end that do not decrease: those in places 0, step, 2 step, ...
inline void check_bounds(const char* name, const char* what, const Tensor& t, int64_t end, int64_t step = 1) {
  if (!contents_checked) return;
  const Entries at(t);
  const int64_t last = t.numel() / step - 1;
  STD_TORCH_CHECK(last >= 0 && at[0] == 0 && at[last * step] == end, name, ": ", what, " must go from 0 to ",
                  end);
  for (int64_t i = 0; i < last; ++i)
    STD_TORCH_CHECK(at[i * step] <= at[(i + 1) * step], name, ": ", what, " must not decrease, got ",
                    at[(i + 1) * step], " after ", at[i * step]);
}

// Rows r0 <= i < r1 of `length` entries, of which those of a row are those of the row before, columns moved
// on by one and places in the values by `stride`.
inline void check_uniform(const SparseStructure& S, int64_t r0, int64_t r1, int64_t length, int64_t stride) {
  const Entries ptr(S.ptr), idx(S.idx), perm(S.perm ? *S.perm : S.idx);
  for (int64_t i = r0; i < r1; ++i) {
    bool same = ptr[i + 1] - ptr[i] == length;
    for (int64_t p = ptr[i]; same && i > r0 && p < ptr[i + 1]; ++p)
      same = idx[p] == idx[p - length] + 1 && (S.perm ? perm[p] - perm[p - length] : length) == stride;
    STD_TORCH_CHECK(same, S.name, ": blocks say that row ", i, " is like the one before, which it is not");
  }
}

}  // namespace learnsolve
