// Triangular systems in the order of a sweep: one launch, whatever the number of levels.
#include "ops/triangular.cuh"

namespace learnsolve::triangular {

namespace {

using namespace cuda;

template <int Lanes, class T, class I>
void solve_handed(const OnDevice& device, const Triangle<T, I>& S, const Sides<T>& v, int64_t systems,
                  int64_t levels, unsigned* tickets) {
  const int64_t results = S.rows * systems, ahead = (results + levels - 1) / levels * kLevelsAhead;
  STD_CUDA_CHECK(cudaMemsetAsync(v.x, 0xff, results * sizeof(T), device.stream));
  LS_LAUNCH(blocks_for(std::min(results, ahead), kThreads / Lanes), kThreads, device.stream,
            (S, v, systems, tickets), handed_rows_kernel<Lanes, T, I>);
  STD_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

template <class T, class I>
void solve_sweep(const OnDevice& device, const Triangle<T, I>& S, const Sides<T>& v, int64_t systems,
                 const SweepPlan<I>& plan) {
  if (plan.table.size > 0) {
    LS_LAUNCH(blocks_for(systems), kThreads, device.stream, (S, v, systems, plan.table),
              chunks_of_rows_kernel<T, I>);
    STD_CUDA_CHECK(cudaGetLastError());
    return;
  }
  switch (plan.lanes) {
    case 1: return solve_handed<1>(device, S, v, systems, plan.levels, plan.tickets);
    case 8: return solve_handed<8>(device, S, v, systems, plan.levels, plan.tickets);
    default: return solve_handed<32>(device, S, v, systems, plan.levels, plan.tickets);
  }
}

#define LS_INSTANCE(T, I)                                                                     \
  template void solve_sweep(const OnDevice&, const Triangle<T, I>&, const Sides<T>&, int64_t, \
                            const SweepPlan<I>&)
LS_INSTANCE(float, int32_t);
LS_INSTANCE(float, int64_t);
LS_INSTANCE(double, int32_t);
LS_INSTANCE(double, int64_t);

}  // namespace learnsolve::triangular
