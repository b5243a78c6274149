// What the emulator (csrc/emulator) notices: each fault in a process of its own, which must end with a
// message.
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/launch.cuh"
#include "kernels/triangular.cuh"
#include "tests/matrix.h"

namespace learnsolve::test {
namespace {

using namespace cuda;

#if defined(__SANITIZE_THREAD__)
constexpr bool kFindsRaces = true;
#else
constexpr bool kFindsRaces = false;
#endif

// run() must end its process with `message` among what it prints.
template <class F>
void require_fault(const char* message, const F& run) {
  int ends[2];
  require(pipe(ends) == 0, "pipe");
  const pid_t child = fork();
  require(child >= 0, "fork");
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    run();
    _exit(0);
  }
  close(ends[1]);
  std::string said;
  char part[4096];
  for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;) said.append(part, n);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  require(status != 0 && said.find(message) != std::string::npos,
          std::string(message) + " was not found in: " + said);
}

// out[i] = in[threads - 1 - i], through shared memory.
LS_KERNEL(1024) reverse_kernel(const int* in, int* out, bool waits) {
  LS_SHARED(numbers, int[1024]);
  const int i = threadIdx.x, n = blockDim.x;
  numbers[i] = in[i];
  if (waits) __syncthreads();
  out[i] = numbers[n - 1 - i];
}
LS_KERNEL(64) leaving_kernel() {
  if (threadIdx.x == 5) return;
  __syncthreads();
}
LS_KERNEL(64) parting_kernel() {
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __syncthreads();
}
LS_KERNEL(64) sum_kernel(int* out, unsigned mask, int lanes) {
  int sum = 1;
  if (static_cast<int>(threadIdx.x) < lanes)
    for (int h = 16; h > 0; h /= 2) sum += __shfl_xor_sync(mask, sum, h);
  out[threadIdx.x] = sum;
}
LS_KERNEL(64) read_kernel(int* out, unsigned mask, int from) {
  if (mask >> threadIdx.x & 1) out[threadIdx.x] = __shfl_sync(mask, static_cast<int>(threadIdx.x), from);
}
// The first block waits for the last.
LS_KERNEL(1) waiting_kernel(volatile int* flag) {
  if (blockIdx.x + 1 == gridDim.x) *flag = 1;
  while (blockIdx.x == 0 && *flag == 0) {
  }
}
// Number i of a chain, x[i] = x[i - 1] + 1, by a block that draws tickets for 8 of them; number 0 needs
// x[needed]. Blocks have 4 threads, each for two numbers that are far apart.
LS_KERNEL(4) chain_kernel(double* x, int n, int needed, unsigned* tickets) {
  for (unsigned ticket; (ticket = take_ticket(tickets, (n + 7) / 8)) < static_cast<unsigned>(n + 7) / 8;)
    for (int i = static_cast<int>(ticket * 8 + threadIdx.x); i < n && i < static_cast<int>(ticket + 1) * 8;
         i += 4) {
      const int from = i > 0 ? i - 1 : needed;
      hand_over(x + i, from < 0 ? 0. : awaited(x + from, peek(x + from)) + 1);
    }
}
LS_KERNEL(32) large_kernel(double* out) {
  LS_SHARED(some, double[4096]);
  LS_SHARED(others, double[2049]);
  out[threadIdx.x] = some[threadIdx.x] + others[threadIdx.x];
}
LS_KERNEL(32) unwritten_kernel(double* out) {
  LS_SHARED(numbers, double[32]);
  if (threadIdx.x != 7) numbers[threadIdx.x] = 1;
  out[threadIdx.x] = numbers[threadIdx.x];
}
[[maybe_unused]] LS_KERNEL(32) beyond_kernel(double* out, int at) {
  LS_SHARED(numbers, double[32]);
  numbers[threadIdx.x] = 1;
  __syncthreads();
  const double* const first = numbers;
  out[threadIdx.x] = first[threadIdx.x + at];
}
// Every block adds to the same number.
LS_KERNEL(1) adding_kernel(int* sum) { *sum += 1; }
// Each block writes a number, and the last one adds them up.
LS_KERNEL(1) unfenced_kernel(int* parts, unsigned* arrived, int* sum) {
  parts[blockIdx.x] = 1;
  if (atomicInc(arrived, gridDim.x - 1) + 1 == gridDim.x)
    for (unsigned b = 0; b < gridDim.x; ++b) *sum += parts[b];
}
LS_KERNEL(64) last_block_kernel(int* parts, unsigned* arrived, int* sum) {
  if (threadIdx.x == 40) parts[blockIdx.x] = 1;
  if (arrives_last(arrived, gridDim.x) && threadIdx.x == 9)
    for (unsigned b = 0; b < gridDim.x; ++b) *sum += parts[b];
}
void emulator_refuses_what_a_device_refuses() {
  std::vector<int> out(1);
  for (const auto& [grid, threads] : {std::pair(dim3(0), dim3(32)),
                                      {dim3(1, 65536), dim3(32)},
                                      {dim3(1, 1, 65536), dim3(32)},
                                      {dim3(1), dim3(64, 17)},
                                      {dim3(1), dim3(0)}}) {
    LS_LAUNCH(grid, threads, nullptr, (out.data()), adding_kernel);
    require(cudaGetLastError() == cudaErrorInvalidConfiguration, "a launch that no device accepts");
    require(cudaGetLastError() == cudaSuccess && out[0] == 0, "which is forgotten, and does nothing");
  }
}

void emulator_finds_a_missing_barrier() {
  std::vector<int> in(256), out(256);
  for (int i = 0; i < 256; ++i) in[i] = i;
  const std::vector<int> reversed(in.rbegin(), in.rend());
  const auto run = [&](bool waits) {
    LS_LAUNCH(1, 256, nullptr, (in.data(), out.data(), waits), reverse_kernel);
  };
  run(true);
  require(out == reversed, "through shared memory");
  if (kFindsRaces) return require_fault("data race", [&] { run(false); });
  std::fill(out.begin(), out.end(), 0);
  run(false);
  require(out != reversed, "what is not there yet is not read");
}

void emulator_finds_races_between_blocks() {
  std::vector<int> sum(1);
  if (kFindsRaces) require_fault("data race", [&] { LS_LAUNCH(2, 1, nullptr, (sum.data()), adding_kernel); });
}

void the_last_block_sees_what_all_have_written() {
  std::vector<int> parts(7), sum(1);
  std::vector<unsigned> arrived(1);
  for (int launch = 1; launch < 4; ++launch) {
    LS_LAUNCH(7, 64, nullptr, (parts.data(), arrived.data(), sum.data()), last_block_kernel);
    require(sum[0] == 7 * launch && arrived[0] == 0, "one block adds up, and the next launch can");
    for (int b = 0; b < 7; ++b) parts[b] = 0;
  }
  if (kFindsRaces)
    require_fault("data race", [&] {
      LS_LAUNCH(7, 1, nullptr, (parts.data(), arrived.data(), sum.data()), unfenced_kernel);
    });
}

void emulator_finds_partial_barriers() {
  for (const char* said : {"a barrier that some threads of the block never reach",
                           "block (0, 0, 0), thread (", "emulator_test.cpp:"})
    require_fault(said, [] { LS_LAUNCH(1, 64, nullptr, (), leaving_kernel); });
  require_fault("at another call", [] { LS_LAUNCH(1, 64, nullptr, (), parting_kernel); });
}

void emulator_finds_wrong_masks() {
  std::vector<int> out(64);
  require_fault("some lanes of its mask never reach",
                [&] { LS_LAUNCH(1, 32, nullptr, (out.data(), ~0u, 31), sum_kernel); });
  require_fault("some lanes of its mask never reach",
                [&] { LS_LAUNCH(1, 24, nullptr, (out.data(), ~0u, 32), sum_kernel); });
  require_fault("mask", [&] { LS_LAUNCH(1, 32, nullptr, (out.data(), 0x00ffffffu, 32), sum_kernel); });
  require_fault("a lane that is not in the mask is read",
                [&] { LS_LAUNCH(1, 32, nullptr, (out.data(), 0xffu, 8), read_kernel); });
}

void emulator_finds_a_block_that_waits_for_another() {
  std::vector<int> flag(1);
  require_fault(kFindsRaces ? "" : "in waiting_kernel, block (0, 0, 0)", [&] {
    setenv("LEARNSOLVE_EMULATOR_SECONDS", "1", 1);
    for (int launch = 0; launch < 64; ++launch) {  // in one of them the first block comes first
      flag[0] = 0;
      LS_LAUNCH(2, 1, nullptr, (flag.data()), waiting_kernel);
    }
  });
}

void emulator_lets_threads_wait_for_numbers() {
  const int n = 50;
  std::vector<double> x(n);
  std::vector<unsigned> tickets(1);
  tickets[0] = 0;
  const auto solve = [&](int needed) {
    cudaMemsetAsync(x.data(), 0xff, n * sizeof(double), nullptr);
    LS_LAUNCH(3, 4, nullptr, (x.data(), n, needed, tickets.data()), chain_kernel);
  };
  for (int again = 0; again < 3; ++again) {
    solve(-1);
    for (int i = 0; i < n; ++i) require(x[i] == i, "every number of the chain, one after another");
    require(tickets[0] == 0, "tickets begin again");
  }
  require_fault("a number that no thread of the block and none before it stores", [&] { solve(n - 1); });
  require_fault("in chain_kernel, block (", [&] { solve(0); });
}

void emulator_limits_shared_memory() {
  std::vector<double> out(32);
  require_fault("more than 48 KB of shared memory",
                [&] { LS_LAUNCH(1, 32, nullptr, (out.data()), large_kernel); });
  LS_LAUNCH(1, 32, nullptr, (out.data()), unwritten_kernel);
  require(out[6] == 1 && out[7] != out[7], "shared memory is NaN until it is written");
#if defined(__SANITIZE_ADDRESS__)
  require_fault("AddressSanitizer", [&] { LS_LAUNCH(1, 32, nullptr, (out.data(), 1), beyond_kernel); });
#endif
}

}  // namespace
}  // namespace learnsolve::test

int main() {
  using namespace learnsolve::test;
  emulator_refuses_what_a_device_refuses();
  emulator_finds_a_missing_barrier();
  emulator_finds_races_between_blocks();
  the_last_block_sees_what_all_have_written();
  emulator_finds_partial_barriers();
  emulator_finds_wrong_masks();
  emulator_finds_a_block_that_waits_for_another();
  emulator_lets_threads_wait_for_numbers();
  emulator_limits_shared_memory();
}
