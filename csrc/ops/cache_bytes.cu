// The cache that loops on a device may fill (kernels/grid.cuh), for Python (learnsolve/_library.py).
#include "kernels/grid.cuh"

// Returns what was assumed until now, in bytes; below 0 is the device's own.
extern "C" __attribute__((visibility("default"))) int64_t learnsolve_assume_cache_bytes(int64_t bytes) {
  return learnsolve::cuda::assumed_cache_bytes.exchange(bytes);
}
