// What the warps of emulated launches ask of memory. GCC puts a call before each access (-fsanitize=thread),
// and these are its callees: nothing of ThreadSanitizer is linked. The lanes of a warp that are for the nth
// time at the same call make one instruction. docs/cuda.md says how its figures are read.
#include "emulator/meter.h"

#include <algorithm>
#include <deque>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "emulator/cuda.h"

extern const char __ehdr_start, _end;  // of this library: its constants are not on the device

namespace learnsolve::emulator {

namespace {

constexpr uintptr_t kSector = 32, kWord = 4, kBanks = 32;

struct Launch {
  const char* kernel;
  int64_t loads = 0, stores = 0, lane_bytes = 0, l1 = 0, l2 = 0, dram = 0, wavefronts = 0;
};
struct Access {
  uint64_t instruction;
  uintptr_t at;
  uint32_t bytes;
  Memory memory;
  bool store;
};

bool on = false;
std::deque<Launch> launches;
Launch* now = nullptr;                          // the one that runs
std::unordered_map<uintptr_t, uint64_t> sites;  // number of each call
std::vector<std::vector<uint32_t>> visits;      // by number of the call and thread
std::vector<Access> accesses;                   // of this block
std::vector<uintptr_t> loaded, stored, of_block,
    units;  // sectors of this launch, of this block; of an instruction

void sort_unique(std::vector<uintptr_t>& v) {
  std::sort(v.begin(), v.end());
  v.erase(std::unique(v.begin(), v.end()), v.end());
}

// One instruction of a warp: the accesses [first, last) of its lanes.
void count(const Access* first, const Access* last) {
  const bool shared = first->memory == Memory::shared;
  const uintptr_t unit = shared ? kWord : kSector;
  units.clear();
  for (const Access* a = first; a < last; ++a)
    for (uintptr_t u = a->at / unit; u <= (a->at + a->bytes - 1) / unit; ++u) units.push_back(u);
  sort_unique(units);
  if (shared) {
    std::size_t of_bank[kBanks] = {};
    for (const uintptr_t word : units) ++of_bank[word % kBanks];
    now->wavefronts += *std::max_element(of_bank, of_bank + kBanks);
  } else if (first->store) {
    ++now->stores, now->l2 += units.size();
    stored.insert(stored.end(), units.begin(), units.end());
  } else {
    ++now->loads, now->l1 += units.size();
    for (const Access* a = first; a < last; ++a) now->lane_bytes += a->bytes;
    of_block.insert(of_block.end(), units.begin(), units.end());
  }
}

void access(const void* at, uint32_t bytes, bool store, const void* site) {
  if (!on || !place || (at >= &__ehdr_start && at < &_end)) return;
  const Memory memory = memory_of(at);
  if (memory == Memory::own) return;
  const dim3 &t = place->thread, &size = place->block_size;
  const unsigned thread = (t.z * size.y + t.y) * size.x + t.x;
  const auto number = sites.try_emplace(reinterpret_cast<uintptr_t>(site), sites.size()).first->second;
  if (number == visits.size()) visits.emplace_back();
  if (visits[number].empty()) visits[number].resize(1024);
  const uint64_t visit = visits[number][thread]++;
  accesses.push_back({number << 40 | uint64_t{thread / 32} << 32 | visit, reinterpret_cast<uintptr_t>(at),
                      bytes, memory, store});
}

}  // namespace

void meter_launch(const char* kernel) {
  if (on) now = &launches.emplace_back(Launch{kernel});
}

void meter_block() {
  if (!on) return;
  // A call that is made for memory of two kinds is two instructions.
  const auto key = [](const Access& a) { return std::tuple(a.instruction, a.memory, a.store); };
  std::sort(accesses.begin(), accesses.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  for (const Access *a = accesses.data(), *const end = a + accesses.size(), *next; a < end; a = next) {
    for (next = a + 1; next < end && key(*next) == key(*a);) ++next;
    count(a, next);
  }
  sort_unique(of_block);
  now->l2 += of_block.size();
  loaded.insert(loaded.end(), of_block.begin(), of_block.end());
  accesses.clear(), of_block.clear();
  for (auto& counts : visits) counts.clear();
}

void meter_end() {
  if (!on) return;
  sort_unique(loaded), sort_unique(stored);
  now->dram += loaded.size() + stored.size();
  loaded.clear(), stored.clear();
}

}  // namespace learnsolve::emulator

using namespace learnsolve::emulator;

extern "C" {
[[gnu::visibility("default")]] void learnsolve_meter_begin() { launches.clear(), on = true; }
// A line for each launch: its figures (Launch; memory in bytes) and its kernel.
[[gnu::visibility("default")]] const char* learnsolve_meter_end() {
  static std::string report;
  on = false, report.clear();
  const int64_t sector = kSector;
  for (const Launch& of : launches) {
    for (const int64_t figure : {of.loads, of.stores, of.lane_bytes, sector * of.l1, sector * of.l2,
                                 sector * of.dram, of.wavefronts})
      report += std::to_string(figure) + ' ';
    report += of.kernel + std::string("\n");
  }
  return report.c_str();
}

#define ACCESS(name, bytes, store) \
  void __tsan_##name(void* at) { access(at, bytes, store, __builtin_return_address(0)); }
#define BOTH(kind, bytes) ACCESS(kind##read##bytes, bytes, false) ACCESS(kind##write##bytes, bytes, true)
#define SIZES(kind) BOTH(kind, 1) BOTH(kind, 2) BOTH(kind, 4) BOTH(kind, 8) BOTH(kind, 16)
SIZES() SIZES(unaligned_) SIZES(volatile_) void __tsan_read_range(void* at, long bytes) {
  access(at, bytes, false, __builtin_return_address(0));
}
void __tsan_write_range(void* at, long bytes) { access(at, bytes, true, __builtin_return_address(0)); }

// Of host code, and of device code that has them: as GCC would have compiled them.
#define ATOMICS(bits)                                                                                     \
  using Bits##bits = uint##bits##_t;                                                                      \
  Bits##bits __tsan_atomic##bits##_load(Bits##bits* at, int) {                                            \
    access(at, bits / 8, false, __builtin_return_address(0));                                             \
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                         \
  }                                                                                                       \
  void __tsan_atomic##bits##_store(Bits##bits* at, Bits##bits value, int) {                               \
    access(at, bits / 8, true, __builtin_return_address(0));                                              \
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                                        \
  }                                                                                                       \
  int __tsan_atomic##bits##_compare_exchange_strong(Bits##bits* at, Bits##bits* wanted, Bits##bits value, \
                                                    int, int) {                                           \
    access(at, bits / 8, true, __builtin_return_address(0));                                              \
    return __atomic_compare_exchange_n(at, wanted, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);     \
  }                                                                                                       \
  CHANGE(bits, exchange, __atomic_exchange_n)                                                             \
  CHANGE(bits, fetch_add, __atomic_fetch_add)                                                             \
  CHANGE(bits, fetch_sub, __atomic_fetch_sub)
#define CHANGE(bits, name, builtin)                                                \
  Bits##bits __tsan_atomic##bits##_##name(Bits##bits* at, Bits##bits value, int) { \
    access(at, bits / 8, true, __builtin_return_address(0));                       \
    return builtin(at, value, __ATOMIC_SEQ_CST);                                   \
  }
ATOMICS(8) ATOMICS(32) ATOMICS(64) void __tsan_atomic_thread_fence(int) {}

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
