// Kept memory: a block comes back for its size, from any thread, and the limit holds.
#include "ops/buffers.h"

#include "tests/cases.h"

namespace learnsolve::test {
namespace {

constexpr size_t kSmall = Buffers::kLeast, kLarge = 2 * Buffers::kLeast;

void reuse(Buffers& buffers) {
  buffers.set_limit(2 * kLarge);
  void *a = buffers.take(kSmall), *b = buffers.take(kLarge);
  buffers.give_back(a, kSmall);
  buffers.give_back(b, kLarge);
  require(buffers.total() == kSmall + kLarge, "buffers: bytes that are kept");
  require(buffers.take(kLarge) == b && buffers.take(kSmall) == a, "buffers: the block of a size");
  require(buffers.total() == 0, "buffers: bytes after all are taken");
  void* c = buffers.take(kSmall);
  buffers.give_back(a, kSmall);
  buffers.give_back(b, kLarge);
  buffers.give_back(c, kSmall);
  buffers.set_limit(kLarge + kSmall);  // the block that was freed first goes
  require(buffers.total() == kLarge + kSmall && buffers.take(kSmall) == c, "buffers: the oldest is dropped");
  buffers.give_back(c, kSmall);
  buffers.set_limit(0);
  require(buffers.total() == 0, "buffers: a limit of zero keeps nothing");
}

void threads(Buffers& buffers) {
  buffers.set_limit(4 * kLarge);
  const auto work = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const size_t bytes = i % 3 ? kSmall : kLarge;
      auto* data = static_cast<int64_t*>(buffers.take(bytes));
      data[0] = data[bytes / sizeof(int64_t) - 1] = i;
      if (i % 7 == 0) buffers.set_limit(i % 2 ? 4 * kLarge : kSmall);
      require(data[0] == i && data[bytes / sizeof(int64_t) - 1] == i, "buffers: a block of two owners");
      buffers.give_back(data, bytes);
    }
  };
  for_ranges({"threads", {0, 100, 200, 300, 400}}, work);
  buffers.drop();
  require(buffers.total() == 0, "buffers: bytes after drop");
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(buffers) {
  using namespace learnsolve::test;
  auto& buffers = learnsolve::Buffers::get();
  reuse(buffers);
  threads(buffers);
}
