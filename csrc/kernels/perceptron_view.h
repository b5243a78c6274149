// What a kernel sees of a perceptron and of the rows that it is applied to: raw pointers, no ownership.
#pragma once

#include <cstdint>

namespace learnsolve {

// Numbers in a row are filled up with zeros to a multiple of the longest vector.
template <class T>
inline constexpr int64_t kRowLanes = 32 / sizeof(T);
template <class T>
constexpr int64_t filled_up(int64_t n) {
  return (n + kRowLanes<T> - 1) / kRowLanes<T> * kRowLanes<T>;
}

// k inputs, f hidden numbers, o outputs; o = f and no w2 for a single layer. A matrix in `from_...` has a row
// for each number that it is applied to, and those rows are filled up (kp, fp, op).
template <class T>
struct PerceptronView {
  int64_t k, f, o, kp, fp, op;
  const T* from_input;          // W1^T (k, fp)
  const T* bias;                // b1 (fp)
  const T* from_hidden;         // W2^T (f, op)
  const T* out_bias;            // b2 (op)
  const T* from_output;         // W2 (o, fp)
  const T* from_preactivation;  // W1 (f, kp)
  bool layers_are_two;
};

// Rows z (n, k); row p also gets ends[2 row_p] + ends[2 col_p + 1], (f) each, unless ends is null.
template <class T, class I>
struct PerceptronRows {
  const T* z;
  const T* ends;
  const I* row;
  const I* col;
};

}  // namespace learnsolve
