// What CPU operators do around their kernels: loops over threads, contents checked, views of structures.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <exception>
#include <mutex>
#include <thread>

#include "kernels/kernels.h"
#include "ops/contention.h"
#include "ops/tensors.h"

namespace learnsolve {

// The distribution of loops over threads: torch's, unless other processes want the cores (ops/contention.h).

// Fewer multiply-adds than this are not worth a second thread: waking one costs about 5 us.
constexpr int64_t kGrain = 24576;

inline int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
// What this thread has had of a processor.
inline int64_t processor_time() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * int64_t{1'000'000'000} + t.tv_nsec;
}

inline thread_local Contention contention;

// A thread that works on a member of a batch, while others work on others, distributes nothing further.
inline thread_local bool one_of_members = false;
inline int64_t threads_here() {
  if (one_of_members) return 1;
  const int64_t threads = torch::stable::get_num_threads();
  return threads == 1 || contention.alone(now()) ? 1 : threads;
}

// What is left to do of a loop, for its caller to wait for. OpenMP would spin for milliseconds of processor
// time, on the core perhaps that the other thread waits for; a caller that sleeps leaves that to it.
class Left {
 public:
  explicit Left(int64_t items) : left(items) {}
  void done(int64_t items) { left -= items; }
  void wait(int64_t own) const {
    const int64_t begin = now(), patience = std::clamp<int64_t>(own, 100'000, 1'000'000);
    while (left > 0) {
      const int64_t waited = now() - begin;
      if (waited > patience)
        std::this_thread::sleep_for(std::chrono::nanoseconds(std::min<int64_t>(waited / 8, 1'000'000)));
    }
  }

 private:
  std::atomic<int64_t> left;
};

// f(i0, i1) over ranges of begin <= i < end, of at least `grain` where there are several.
template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const F& f) {
  if (begin >= end) return;
  if (end - begin <= grain || threads_here() == 1) return f(begin, end);
  LoopTimes times{};
  const bool watched = contention.watches();
  const int64_t start = now();
  std::atomic<int64_t> work{0};
  Left left(end - begin);
  torch::stable::parallel_for(begin, end, grain, [&](int64_t i0, int64_t i1) {
    struct Part {  // done even if f throws
      Left& left;
      int64_t items;
      ~Part() { left.done(items); }
    };
    const int64_t own_start = now();
    int64_t used = watched ? -processor_time() : 0;
    {
      const Part part{left, i1 - i0};
      f(i0, i1);
      if (watched) work += used += processor_time();
    }
    if (i0 != begin) return;  // the caller has the first range
    times.own_work = used, times.own = now() - own_start;
    left.wait(times.own);
  });
  times.end = now(), times.wall = times.end - start, times.work = work;
  contention.judge(times);
}

// f(b) for the members of a batch, `passes` passes of `work` multiply-adds each: several members at a time,
// unless they are fewer than the threads and a pass alone has work for several. What f throws is thrown again
// when all have ended.
template <class F>
void parallel_members(int64_t batch, int64_t work, int64_t passes, const F& f) {
  const int64_t all = threads_here(), threads = std::min(batch, all);
  if (threads < 2 || batch * work * passes < 2 * kGrain || (batch < all && work >= 2 * kGrain)) {
    for (int64_t b = 0; b < batch; ++b) f(b);
    return;
  }
  std::atomic<int64_t> next{0};  // they may end after different numbers of iterations
  std::exception_ptr thrown;
  std::mutex throwing;
  parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    one_of_members = true;
    try {
      for (int64_t b; (b = next++) < batch;) f(b);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(throwing);
      if (!thrown) thrown = std::current_exception();
    }
    one_of_members = false;
  });
  if (thrown) std::rethrow_exception(thrown);
}

// Contents of index arrays and plans on the CPU, checked where LEARNSOLVE_CHECK=1 asks for it: those of a
// pattern fit by construction, but operators are public, and a wrong index makes a kernel read foreign
// memory. One pass over each array, or over the products of a plan.
extern bool contents_checked;  // host.cpp

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

// A structure on the CPU: `arrays` are its tensors, or a list of them.
struct Structure : SparseStructure {
  template <class... Arrays>
  explicit Structure(const char* name, const Arrays&... arrays) : SparseStructure(name, arrays...) {
    STD_TORCH_CHECK(blocks.dim() == 2 && blocks.size(0) >= 1 && blocks.size(1) == 2, name,
                    ": blocks must be (number of blocks + 1, 2)");
    STD_TORCH_CHECK(entry(ptr, 0) == 0 && entry(ptr, rows()) == nnz() && entry(blocks, 0) == 0 &&
                        entry(blocks, 2 * n_blocks()) == rows(),
                    name, ": ptr must end at nnz and blocks must cover all rows");
    if (contents_checked) check_contents();
  }
  static int64_t entry(const Tensor& t, int64_t i) {
    return t.scalar_type() == ScalarType::Int ? data<int32_t>(t)[i] : data<int64_t>(t)[i];
  }
  int64_t n_blocks() const { return blocks.numel() / 2 - 1; }

  // Does an operand with this many rows have one for each column?
  void check_columns(int64_t columns) const {
    STD_TORCH_CHECK(columns > 0 || nnz() == 0, name,
                    ": an operand has no rows, and the structure has entries");
    check_range(name, "columns", idx, 0, columns);
  }

  // Do most rows lie in uniform blocks?
  template <class I>
  bool mostly_uniform() const {
    const I* table = data<I>(blocks);
    int64_t uniform = 0;
    for (int64_t b = 0; b < n_blocks(); ++b)
      if (table[2 * b + 1] > 0) uniform += table[2 * b + 2] - table[2 * b];
    return 2 * uniform > rows();
  }

  template <class T, class I>
  CsrView<T, I> view(const T* values) const {
    return {data<I>(ptr), data<I>(idx), data<I>(perm), values};
  }
  template <class I>
  RowBlocks<I> row_blocks() const {
    return {data<I>(blocks)};
  }

 private:
  void check_contents() const {
    check_bounds(name, "ptr", ptr, nnz());
    check_bounds(name, "blocks", blocks, rows(), 2);
    check_range(name, "perm", perm, 0, nnz());
    const Entries table(blocks);
    for (int64_t b = 0; b < n_blocks(); ++b)
      if (const int64_t length = table[2 * b + 1]; length > 0)
        check_uniform(*this, table[2 * b], table[2 * b + 2], length, length);
  }
};

// First block of part c of `parts` that hold about equal numbers of entries and rows.
template <class I>
int64_t block_bound(const Structure& S, int64_t c, int64_t parts) {
  if (c == parts) return S.n_blocks();
  const I* ptr = data<I>(S.ptr);
  const I* table = data<I>(S.blocks);
  const auto weight = [&](int64_t b) { return static_cast<int64_t>(ptr[table[2 * b]]) + table[2 * b]; };
  const int64_t target = weight(S.n_blocks()) / parts * c;
  int64_t lo = 0, hi = S.n_blocks();
  while (lo < hi) {
    const int64_t mid = (lo + hi) / 2;
    weight(mid) < target ? lo = mid + 1 : hi = mid;
  }
  return lo;
}

// f(b0, b1) over ranges of blocks, k columns each.
template <class I, class F>
void parallel_blocks(const Structure& S, int64_t k, const F& f) {
  const int64_t n_blocks = S.n_blocks();
  const int64_t work = (S.nnz() + S.rows()) * std::max<int64_t>(k, 1);
  const int64_t parts = work < 2 * kGrain ? 1 : std::min<int64_t>({n_blocks, work / kGrain, threads_here()});
  if (parts <= 1) return f(0, n_blocks);
  parallel_for(0, parts, 1, [&](int64_t c0, int64_t c1) {
    f(block_bound<I>(S, c0, parts), block_bound<I>(S, c1, parts));
  });
}

// gx = S g and the gradient for the values, where A (the structure in the order of the values, without perm)
// and S (that whose rows are gx's) are the transposes of one another or, for y = A^T x, the same.
template <class T, class I>
void both_gradients(const Structure& A, const Structure& S, const T* values, const T* g, const T* x,
                    int64_t k, T* gx, T* ga, bool accumulate_gx, bool accumulate_ga) {
  const auto& table = kernels().get<T, I>();
  const CsrView<T, I> view = S.view<T, I>(values);
  if (k == 1 && S.mostly_uniform<I>()) {
    parallel_blocks<I>(S, k, [&](int64_t b0, int64_t b1) {
      table.spmm(view, S.row_blocks<I>(), b0, b1, g, k, gx, accumulate_gx);
    });
    parallel_blocks<I>(A, k, [&](int64_t b0, int64_t b1) {
      table.sddmm(data<I>(A.ptr), data<I>(A.idx), A.row_blocks<I>(), b0, b1, S.perm ? g : x, S.perm ? x : g,
                  k, ga, accumulate_ga);
    });
  } else {
    parallel_blocks<I>(S, k, [&](int64_t b0, int64_t b1) {
      table.spmm_backward(view, S.row_blocks<I>(), b0, b1, g, x, k, gx, ga, accumulate_gx, accumulate_ga);
    });
  }
}

// Blocks of columns n x all, and those of their columns with a cotangent that is not zero, n x count.
class LearningColumns {
 public:
  LearningColumns(int64_t n_, int64_t all_) : n(n_), all(all_), left(all_), learns(all_, 0) {}

  // Marks the columns of v that are not zero.
  template <class T>
  void look(const T* v, int64_t rows) {
    if (!v) return;
    for (int64_t i = 0; i < rows && left > 0; ++i)
      for (int64_t j = 0; j < all; ++j)
        if (v[i * all + j] != T(0) && !learns[j]) learns[j] = 1, --left;
  }

  // All columns if only a few are inactive: copying columns costs a pass over every vector. Never a single
  // one of several: sums over a single column have another order.
  void choose() {
    int64_t found = all - left;
    if (found == 0) return;
    const bool every = 4 * found > 3 * all;
    if (found == 1 && !every) *std::find(learns.begin(), learns.end(), 0) = 1;
    for (int64_t j = 0; j < all; ++j) {
      if (!every && !learns[j]) continue;
      if (runs.empty() || runs.back().from + runs.back().length < j) runs.push_back({j, count, 0});
      ++count, ++runs.back().length;
    }
  }

  bool some() const { return count < all; }

  // The cache lines that are read of a row are too far from those of the next for the machine to predict, so
  // they are prefetched.
  template <class T>
  void take(const T* from, T* to) const {
    constexpr int64_t line = 64 / sizeof(T), ahead = 16;
    parallel_for(0, n, std::max<int64_t>(kGrain / all, 1), [&](int64_t i0, int64_t i1) {
      for (int64_t i = i0; i < i1; ++i) {
        if (some() && i + ahead < n)
          for (const Run& run : runs)
            for (int64_t j = 0; j < run.length; j += line)
              __builtin_prefetch(from + (i + ahead) * all + run.from + j);
        for (const Run& run : runs)
          for (int64_t j = 0; j < run.length; ++j) to[i * count + run.to + j] = from[i * all + run.from + j];
      }
    });
  }
  template <class T>
  void put(const T* from, T* to) const {
    for (int64_t i = 0; i < n; ++i)
      for (const Run& run : runs)
        for (int64_t j = 0; j < run.length; ++j) to[i * all + run.from + j] = from[i * count + run.to + j];
  }

  int64_t count = 0;  // of those chosen
  int64_t column(int64_t j) const {
    for (const Run& run : runs)
      if (j < run.to + run.length) return run.from + j - run.to;
    return -1;
  }

 private:
  struct Run {
    int64_t from, to, length;
  };
  int64_t n, all, left;  // left: not marked
  std::vector<char> learns;
  std::vector<Run> runs;  // the columns chosen as ranges, and where they go among themselves
};

// Vectors of several iterations of a loop, kept until the gradient on a pattern is added up for all of them.

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
