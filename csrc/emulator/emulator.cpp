// The threads of a launch (emulator/cuda.h): stacks of their own, between which this thread of the host
// switches. Compiled without sanitizers, which are told of every switch.
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include "emulator/cuda.h"
#include "emulator/meter.h"

extern "C" {
// Of the sanitizers, where there are any.
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, std::size_t size);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, std::size_t* size);
[[gnu::weak]] void __asan_poison_memory_region(const volatile void* at, std::size_t size);
[[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* at, std::size_t size);
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
[[gnu::weak]] void __tsan_acquire(void* at);
[[gnu::weak]] void __tsan_release(void* at);
}

namespace learnsolve::emulator {

Place* place = nullptr;

namespace {

constexpr std::size_t kStack = std::size_t{128} << 10, kShared = std::size_t{48} << 10;
constexpr std::size_t kGap = 64, kVariables = 15, kRoom = kShared + (kVariables + 2) * kGap;
constexpr std::size_t kArguments = std::size_t{64} << 10;  // of the host's stack, from those of a launch on
constexpr int kWarp = 32;
constexpr unsigned kNoSync = 1;  // a switch of ThreadSanitizer's that orders nothing

thread_local cudaError_t last_error = cudaSuccess;

bool watched() { return __tsan_create_fiber != nullptr; }  // by ThreadSanitizer

std::byte* map(std::size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) std::perror("emulator"), std::abort();
  return static_cast<std::byte*>(at);
}

// Where a stack goes on.
struct Point {
  void* at[5];
  void* fake_stack = nullptr;
  const void* bottom = nullptr;
  std::size_t size = 0;
};

// Not inlined, because no function may jump to a point of its own.
[[gnu::noinline]] void jump(Point& to) { __builtin_longjmp(to.at, 1); }
[[gnu::noinline]] void switch_points(Point& from, Point& to) {
  if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.size);
  if (__builtin_setjmp(from.at) == 0) jump(to);
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
}

enum class Waits { nothing, barrier, lanes, turn };

struct Thread {
  Place place;
  struct Stack* stack = nullptr;
  void* fiber = nullptr;  // ThreadSanitizer's
  bool ended = false;
  Waits waits = Waits::nothing;
  Where where;
  // Of ThreadSanitizer: what it releases when it waits, in turn, and which of these the others acquire.
  char released[2];
  int turn = 0, acquired = 0;
  // What a shuffle has given and got, and the mask that it waits for.
  unsigned mask = 0;
  uint64_t given = 0, got = 0;
  int from = 0;
  const volatile void* polled = nullptr;
};

struct Stack {
  std::byte* memory;
  Point point;
  ucontext_t first;
  bool entered = false;
  explicit Stack(std::byte* memory_) : memory(memory_) { point.bottom = memory, point.size = kStack; }
};

class Engine {
 public:
  void run(const char* kernel_, dim3 grid, dim3 threads, void (*body_)(const void*), const void* arguments_) {
    kernel = kernel_, body = body_, arguments = arguments_;
    std::mt19937_64 random(seed + launches++);
    const int64_t blocks = int64_t{grid.x} * grid.y * grid.z;
    std::vector<int64_t> order(blocks);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    Place* const outside = std::exchange(place, nullptr);
    if (meter_launch) meter_launch(kernel);
    for (const int64_t b : order) {
      const dim3 at(b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y);
      run_block(at, grid, threads, random);
      if (meter_block) meter_block();
    }
    if (meter_end) meter_end();
    if (watched()) __tsan_acquire(this);
    place = outside;
  }

  bool barrier(bool says, const Where& where) {
    any_next |= says;
    wait(Waits::barrier, where);
    return any;
  }

  uint64_t exchange(unsigned mask, uint64_t bits, int from, const Where& where) {
    Thread& own = *running;
    const int lane = static_cast<int>(&own - threads.data()) % kWarp;
    own.mask = mask, own.given = bits, own.from = from;
    if (!(mask >> lane & 1)) fault("this lane is not in its own mask", where);
    if (from < 0 || from >= kWarp || !(mask >> from & 1))
      fault("a lane that is not in the mask is read", where);
    wait(Waits::lanes, where);
    return own.got;
  }

  // Who polls the same place again has found nothing new.
  void spin(const volatile void* at, const Where& where) {
    Thread& own = *running;
    moved |= std::exchange(own.polled, at) != at;
    own.waits = Waits::turn, own.where = where;
    leave(*own.stack);
  }

  void* shared(const void* key, int64_t bytes, int64_t alignment, const Where& where) {
    for (const auto& [known, at] : variables)
      if (known == key) return at;
    std::byte* const at = room + filled + kGap * (1 + variables.size());
    filled += (bytes + 15) / 16 * 16;
    if (filled > kShared || variables.size() == kVariables || alignment > 16)
      fault("more than 48 KB of shared memory, or too many variables", where);
    if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(at, bytes);
    for (int64_t i = 0; i < bytes; ++i) static_cast<volatile std::byte*>(at)[i] = std::byte{0xff};
    variables.emplace_back(key, at);
    return at;
  }

  Memory memory_of(const void* at) const {
    const auto within = [&](const void* from, std::size_t size) {
      return at >= from && at < static_cast<const std::byte*>(from) + size;
    };
    if (within(room, kRoom)) return Memory::shared;
    const bool own = within(running->stack->memory, kStack) || within(&running->place, sizeof(Place)) ||
                     within(arguments, kArguments);
    return own ? Memory::own : Memory::device;
  }

  [[noreturn]] void fault(const char* what, const Where& where) const {
    std::fprintf(stderr, "%s:%u: %s\n  in %s", where.file_name(), where.line(), what, kernel);
    if (running) {
      const dim3 &b = running->place.block, &t = running->place.thread;
      std::fprintf(stderr, ", block (%u, %u, %u), thread (%u, %u, %u)", b.x, b.y, b.z, t.x, t.y, t.z);
    }
    std::fputc('\n', stderr);
    std::abort();
  }

 private:
  const char* kernel = "";
  void (*body)(const void*) = nullptr;
  const void* arguments = nullptr;
  const uint64_t seed =
      std::getenv("LEARNSOLVE_EMULATOR_SEED") ? std::atoll(std::getenv("LEARNSOLVE_EMULATOR_SEED")) : 0;
  uint64_t launches = 0;

  std::vector<Thread> threads;  // of this block
  std::vector<int> order;       // in which they begin
  std::vector<Thread*> queue;   // that can run, from number `next` on
  std::size_t next = 0, ended = 0;
  Thread *running = nullptr, *done = nullptr;
  std::vector<std::unique_ptr<Stack>> stacks, used;
  Point host;
  void* host_fiber = nullptr;
  bool any = false, any_next = false;
  bool moved = false;  // has any thread done more than poll since those that poll had their turn?

  std::byte* fresh = nullptr;  // under ThreadSanitizer, the stacks of a block
  std::byte* room = nullptr;   // shared memory
  std::size_t filled = 0;
  std::vector<std::pair<const void*, void*>> variables;

  void run_block(dim3 at, dim3 grid, dim3 size, std::mt19937_64& random) {
    const int count = static_cast<int>(size.x * size.y * size.z);
    threads.assign(count, {});
    order.resize(count);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    for (unsigned t = 0; t < threads.size(); ++t)
      threads[t].place = {{t % size.x, t / size.x % size.y, t / size.x / size.y}, at, size, grid};
    ended = 0;
    any = any_next = false;
    moved = true;
    filled = 0;
    variables.clear();
    if (!room) room = map(kRoom);
    if (watched()) fresh = map(count * kStack);
    if (__asan_poison_memory_region) __asan_poison_memory_region(room, kRoom);
    host_fiber = watched() ? __tsan_get_current_fiber() : nullptr;
    queue.clear();
    for (const int t : order) queue.push_back(&threads[t]);
    for (next = 0;; release(), next = 0) {
      while (next < queue.size()) resume(*queue[next++]);
      if (ended == threads.size()) break;
    }
    if (!watched()) return;
    // ThreadSanitizer must not take the next block's accesses for later ones of this block's threads.
    for (Thread& thread : threads) __tsan_destroy_fiber(thread.fiber);
    used.clear();
    munmap(fresh, count * kStack);
    munmap(std::exchange(room, nullptr), kRoom);
  }

  // Goes on with a thread, and with those after it in the queue, until one ends or none can run.
  void resume(Thread& thread) {
    if (!thread.stack) {
      if (stacks.empty())
        stacks.push_back(std::make_unique<Stack>(watched() ? fresh + used.size() * kStack : map(kStack)));
      used.push_back(std::move(stacks.back()));
      stacks.pop_back();
      thread.stack = used.back().get();
      if (watched()) thread.fiber = __tsan_create_fiber(0);
    }
    go_to(thread);
    enter(*thread.stack);
    running = nullptr, place = nullptr;
    Thread* const last = std::exchange(done, nullptr);
    if (!last) return;
    ++ended, moved = true;
    if (watched()) return;
    const auto own =
        std::find_if(used.begin(), used.end(), [&](const auto& s) { return s.get() == last->stack; });
    stacks.push_back(std::move(*own));
    *own = std::move(used.back());
    used.pop_back();
  }
  void go_to(Thread& thread) {
    running = &thread, place = &thread.place;
    if (watched()) __tsan_switch_to_fiber(thread.fiber, kNoSync);
  }
  // From a thread that cannot go on to one that can, or to the host.
  void leave(Stack& stack) {
    if (next < queue.size() && queue[next]->stack && !done) {
      Thread& other = *queue[next++];
      go_to(other);
      return switch_points(stack.point, other.stack->point);
    }
    if (watched()) __tsan_switch_to_fiber(host_fiber, kNoSync);
    switch_points(stack.point, host);
  }
  [[gnu::noinline]] void enter(Stack& stack) {
    if (stack.entered) return switch_points(host, stack.point);
    stack.entered = true;
    getcontext(&stack.first);
    stack.first.uc_stack.ss_sp = stack.memory, stack.first.uc_stack.ss_size = kStack;
    makecontext(&stack.first, reinterpret_cast<void (*)()>(&Engine::begin), 0);
    begin_on(stack);
  }
  [[gnu::noinline]] void begin_on(Stack& stack) {
    if (__sanitizer_start_switch_fiber)
      __sanitizer_start_switch_fiber(&host.fake_stack, stack.memory, kStack);
    if (__builtin_setjmp(host.at) == 0) setcontext(&stack.first);
    if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(host.fake_stack, nullptr, nullptr);
  }
  // What a stack runs: one thread after another.
  static void begin();

  void wait(Waits what, const Where& where) {
    Thread& own = *running;
    own.waits = what, own.where = where, moved = true;
    if (watched()) __tsan_release(own.released + own.turn);
    own.turn = 1 - own.turn;
    leave(*own.stack);
    if (watched()) acquire(own);
  }
  // All that it has waited for comes before what it does now.
  void acquire(Thread& own) {
    const int first = own.mask ? static_cast<int>(&own - threads.data()) / kWarp * kWarp : 0;
    const int end =
        own.mask ? std::min<int>(first + kWarp, threads.size()) : static_cast<int>(threads.size());
    for (int t = first; t < end; ++t)
      if (!own.mask || own.mask >> (t - first) & 1) __tsan_acquire(threads[t].released + threads[t].acquired);
    own.mask = 0;
  }

  // No thread can run: those go on whose barrier, or whose lanes, are complete, and those that poll, unless
  // nothing can have changed.
  void release() {
    std::vector<Thread*>& ready = queue;
    ready.clear();
    bool all = true;
    for (Thread& thread : threads) all = all && thread.waits == Waits::barrier;
    if (all) {
      for (const int t : order) check_same(threads[0], threads[t]), ready.push_back(&threads[t]);
      any = std::exchange(any_next, false);
    }
    if (!all)
      for (std::size_t first = 0; first < threads.size(); first += kWarp) release_lanes(first, ready);
    for (Thread* thread : ready) thread->waits = Waits::nothing, thread->acquired = 1 - thread->turn;
    if (std::exchange(moved, false) || !ready.empty())
      for (const int t : order)
        if (threads[t].waits == Waits::turn) threads[t].waits = Waits::nothing, ready.push_back(&threads[t]);
    if (ready.empty()) report();
  }
  void release_lanes(std::size_t first, std::vector<Thread*>& ready) {
    const std::size_t count = std::min<std::size_t>(kWarp, threads.size() - first);
    for (std::size_t l = 0; l < count; ++l) {
      Thread& own = threads[first + l];
      if (own.waits != Waits::lanes) continue;
      bool complete = true;
      for (std::size_t o = 0; o < kWarp && complete; ++o)
        if (own.mask >> o & 1)
          complete =
              o < count && threads[first + o].waits == Waits::lanes && threads[first + o].mask == own.mask;
      if (!complete) continue;
      for (std::size_t o = 0; o < count; ++o)
        if (own.mask >> o & 1) check_same(own, threads[first + o]);
      own.got = threads[first + own.from].given;
      ready.push_back(&own);
    }
  }
  void check_same(const Thread& one, const Thread& other) {
    if (one.where.line() == other.where.line()) return;
    running = const_cast<Thread*>(&other);
    fault("other threads that it waits for are at another call", other.where);
  }
  [[noreturn]] void report() {
    for (Thread& thread : threads)
      if (!thread.ended) {
        running = &thread;
        fault(thread.waits == Waits::barrier ? "a barrier that some threads of the block never reach"
              : thread.waits == Waits::lanes
                  ? "a shuffle that some lanes of its mask never reach"
                  : "a number that no thread of the block and none before it stores",
              thread.where);
      }
    std::abort();
  }
};

// One launch at a time, whichever thread of the host makes it.
Engine one;
std::mutex turn;

// Ends the process after some seconds of this thread: a timer of this thread and of this process, which a
// fork does not have.
class Watch {
 public:
  explicit Watch(int seconds) {
    thread_local timer_t timer;
    thread_local pid_t owner = 0;
    if (owner != getpid()) {
      // ThreadSanitizer holds signals back while a loop computes: without a handler it ends all the same.
      if (!watched())
        std::signal(SIGXCPU, [](int) { one.fault("a launch that does not end", Where::current()); });
      sigevent event{};
      event.sigev_notify = SIGEV_THREAD_ID, event.sigev_signo = SIGXCPU;
      event._sigev_un._tid = gettid();
      if (timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer) != 0) std::perror("emulator"), std::abort();
      owner = getpid();
    }
    used = timer;
    set(seconds);
  }
  ~Watch() { set(0); }

 private:
  timer_t used;
  void set(int seconds) const {
    const itimerspec time{{}, {seconds, 0}};
    timer_settime(used, 0, &time, nullptr);
  }
};

void Engine::begin() {
  Engine& e = one;
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(nullptr, &e.host.bottom, &e.host.size);
  for (;;) {
    Thread& own = *e.running;
    e.body(e.arguments);
    own.ended = true, e.done = &own;
    if (watched()) __tsan_release(&e);
    e.leave(*own.stack);
  }
}

}  // namespace

void launch(const char* kernel, dim3 grid, dim3 threads, void (*body)(const void*), const void* arguments) {
  const bool fits = grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= 0x7fffffffu && grid.y <= 0xffff &&
                    grid.z <= 0xffff && threads.x > 0 && threads.y > 0 && threads.z > 0 && threads.z <= 64 &&
                    uint64_t{threads.x} * threads.y * threads.z <= 1024;
  if (!fits) {
    last_error = cudaErrorInvalidConfiguration;
    return;
  }
  const std::lock_guard<std::mutex> lock(turn);
  const char* const limit = std::getenv("LEARNSOLVE_EMULATOR_SECONDS");
  const Watch watch(limit ? std::atoi(limit) : 60);
  one.run(kernel, grid, threads, body, arguments);
}
void* shared(const void* key, int64_t bytes, int64_t alignment, const Where& where) {
  return one.shared(key, bytes, alignment, where);
}
Memory memory_of(const void* at) { return one.memory_of(at); }
bool barrier(bool says, const Where& where) { return one.barrier(says, where); }
uint64_t exchange(unsigned mask, uint64_t bits, int from, const Where& where) {
  return one.exchange(mask, bits, from, where);
}
void spin(const volatile void* at, const Where& where) { one.spin(at, where); }
void fence() {
  static char fenced;
  if (!watched()) return;
  __tsan_acquire(&fenced);
  __tsan_release(&fenced);
}
void require(bool holds, const char* what, const Where& where) {
  if (!holds) one.fault(what, where);
}

}  // namespace learnsolve::emulator

cudaError_t cudaGetLastError() { return std::exchange(learnsolve::emulator::last_error, cudaSuccess); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) {
  if (learnsolve::emulator::meter_launch) learnsolve::emulator::meter_launch("cudaMemcpyAsync");
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t bytes, cudaStream_t) {
  std::memset(to, byte, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_step, const void* from, std::size_t from_step,
                              std::size_t bytes, std::size_t count, cudaMemcpyKind, cudaStream_t) {
  if (learnsolve::emulator::meter_launch) learnsolve::emulator::meter_launch("cudaMemcpy2DAsync");
  for (std::size_t i = 0; i < count; ++i)
    std::memcpy(static_cast<std::byte*>(to) + i * to_step,
                static_cast<const std::byte*>(from) + i * from_step, bytes);
  return cudaSuccess;
}
