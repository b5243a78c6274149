// csr_sptrsv and csr_sptrsv_backward for CUDA tensors. On a device row_blocks holds the row of each entry.
#include <sstream>

#include "ops/sptrsv.cuh"

namespace learnsolve {
namespace {

using namespace cuda;

// -<u_i, w_j> for every entry, by `Lanes` lanes each.
template <int Lanes, class T, class I>
LS_KERNEL(kThreads)
gradient_kernel(const I* rows, const I* idx, const I* perm, int64_t entries, const T* u, const T* w,
                int64_t step, int64_t k, int64_t batch, T* ga, int64_t ga_step) {
  for_aside(ga_step ? batch : 1, [&](int64_t m) {
    for_items<Lanes>(entries, [&](const auto& team, int64_t p) {
      entry_gradient(team, rows, idx, perm, p, u + m * step, w + m * step, step, k, ga_step ? 1 : batch,
                     ga + m * ga_step);
    });
  });
}

// Operands of a solve, contiguous, with sizes shared by both operators.
struct System {
  Tensor values, b;
  int64_t values_step, batch, n, k;
  bool shared;  // b is expanded from one tensor, and read where it is

  System(const char* name, const DeviceTriangle& S, const Tensor& values_, const Tensor& b_)
      : values(dense(values_)), b(b_) {
    check_dense(name, "b", b, values);
    check_device(name, values, {&b});
    STD_TORCH_CHECK(values.dim() == 1 || values.dim() == 2, name, ": values must be (nnz) or (B, nnz)");
    const int64_t nnz = values.size(values.dim() - 1);
    STD_TORCH_CHECK(S.perm ? nnz >= S.entries() : nnz == S.entries(), name, ": values must hold ",
                    S.entries(), " entries, got ", nnz);
    shared =
        b.dim() == 3 && b.size(0) > 1 && b.stride(0) == 0 && b.stride(2) == 1 && b.stride(1) == b.size(2);
    if (!shared) b = dense(b);
    const Dense d(b);
    batch = d.batch, n = d.n, k = d.k;
    STD_TORCH_CHECK(n == S.rows(), name, ": b must have ", S.rows(), " rows, got ", n);
    STD_TORCH_CHECK(values.dim() == 1 || (b.dim() == 3 && values.size(0) == batch), name,
                    ": with values (B, nnz), b must be (B, n, k)");
    values_step = values.dim() == 2 ? nnz : 0;
  }

  template <class T, class I>
  void solve(const char* name, const DeviceTriangle& S, const OnDevice& device, T* x) const {
    refuse<T, I>(name, S);
    S.solve<T, I>(device, data<T>(values), values_step, data<T>(b), shared ? 0 : n * k, x, batch, k,
                  S.scratch(values, batch, k));
  }

 private:
  // A device would have to be waited for; the host refuses as the CPU operator does.
  template <class T, class I>
  void refuse([[maybe_unused]] const char* name, [[maybe_unused]] const DeviceTriangle& S) const {
#ifndef __CUDACC__
    for (int64_t m = 0; m < (values_step ? batch : 1); ++m)
      for (int64_t i = 0; i < n && !S.unit; ++i) {
        const int64_t p = S.upper ? data<I>(S.ptr)[i] : data<I>(S.ptr)[i + 1] - 1;
        const T value = data<T>(values)[m * values_step + (S.perm ? data<I>(*S.perm)[p] : p)];
        if (finite(reciprocal(value)) || value != value) continue;
        std::ostringstream text;
        text << value;
        STD_TORCH_CHECK(false, name, ": cannot divide by the diagonal: row ", i, " has ", text.str());
      }
#endif
  }
};

std::vector<int64_t> size_of(const Tensor& t) { return {t.sizes().begin(), t.sizes().end()}; }

}  // namespace

Tensor csr_sptrsv_cuda(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
                       const Tensor& blocks, const Tensor& order, const Tensor& levels, bool upper, bool unit,
                       const Tensor& values, const Tensor& b) {
  const char* name = "csr_sptrsv";
  const DeviceTriangle S(name, values, ptr, idx, perm, blocks, order, levels, upper, unit);
  const System system(name, S, values, b);
  Tensor x = new_empty(values, size_of(b));
  if (x.numel() == 0) return x;
  const OnDevice device(values);
  dispatch(name, values, S.idx,
           [&]<class T, class I>() { system.solve<T, I>(name, S, device, mutable_data<T>(x)); });
  return x;
}

std::tuple<Tensor, Tensor> csr_sptrsv_backward_cuda(const Tensor& ptr, const Tensor& idx,
                                                    const std::optional<Tensor>& perm, const Tensor& blocks,
                                                    const Tensor& order, const Tensor& levels, bool upper,
                                                    bool unit, const Tensor& row_ptr_, const Tensor& row_idx_,
                                                    const std::optional<Tensor>& row_perm_,
                                                    const Tensor& row_blocks_, bool transpose,
                                                    const Tensor& values, const Tensor& g, const Tensor& x_) {
  const char* name = "csr_sptrsv_backward";
  const DeviceTriangle S(name, values, ptr, idx, perm, blocks, order, levels, upper, unit);
  const Tensor row_idx = dense(row_idx_), rows = dense(row_blocks_), x = dense(x_);
  const std::optional<Tensor> row_perm = dense(row_perm_);
  check_device(name, values, {&row_ptr_, &row_idx, &rows, &x});
  if (row_perm) check_device(name, values, {&*row_perm});
  check_indices(name, row_ptr_, row_idx, row_perm, rows);
  STD_TORCH_CHECK(row_ptr_.numel() == S.ptr.numel() && row_idx.numel() == S.entries() &&
                      row_idx.scalar_type() == S.idx.scalar_type() &&
                      (!row_perm || !S.perm || row_perm->numel() == S.perm->numel()),
                  name, ": both structures must hold the same entries");
  STD_TORCH_CHECK(rows.numel() == S.entries(), name,
                  ": on a CUDA device row_blocks must hold the row of each entry");
  const System system(name, S, values, g);
  STD_TORCH_CHECK(std::equal(x.sizes().begin(), x.sizes().end(), g.sizes().begin(), g.sizes().end()) &&
                      x.scalar_type() == values.scalar_type(),
                  name, ": x must have the shape and dtype of g");
  const std::vector<int64_t> values_size = size_of(values);
  const bool written = S.entries() == values_size.back() && g.numel() > 0;
  Tensor y = new_empty(values, size_of(g));
  Tensor ga = written ? new_empty(values, values_size) : new_zeros(values, values_size);
  if (g.numel() == 0) return {ga, y};
  const OnDevice device(values);
  dispatch(name, values, S.idx, [&]<class T, class I>() {
    system.solve<T, I>(name, S, device, mutable_data<T>(y));
    if (S.entries() == 0) return;
    const auto launch = [&]<int Lanes>() {
      const dim3 grid(blocks_for(S.entries(), kThreads / Lanes),
                      blocks_aside(system.values_step ? system.batch : 1));
      LS_LAUNCH(grid, kThreads, device.stream,
                (data<I>(rows), data<I>(row_idx), data<I>(row_perm), S.entries(), data<T>(transpose ? x : y),
                 data<T>(transpose ? y : x), system.n * system.k, system.k, system.batch, mutable_data<T>(ga),
                 system.values_step),
                gradient_kernel<Lanes, T, I>);
      STD_CUDA_CHECK(cudaGetLastError());
    };
    if (system.k == 1)
      launch.template operator()<1>();
    else if (system.k <= 8)
      launch.template operator()<8>();
    else
      launch.template operator()<32>();
  });
  return {ga, y};
}

}  // namespace learnsolve

LS_OPERATORS(m) {
  m.impl("csr_sptrsv", TORCH_BOX(&learnsolve::csr_sptrsv_cuda));
  m.impl("csr_sptrsv_backward", TORCH_BOX(&learnsolve::csr_sptrsv_backward_cuda));
}
