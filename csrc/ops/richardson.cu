// csr_richardson and csr_richardson_backward for CUDA tensors: a launch or two a sweep or, for systems that
// stay in the device's cache, one persistent kernel for all sweeps of a call (kernels/richardson.cuh).
#include <cmath>
#include <limits>

#include "kernels/richardson.cuh"
#include "ops/row_pass.cuh"
#include "ops/sweep_adjoint_sizes.h"

namespace learnsolve {
namespace {

using namespace cuda;

// ga += what some sweeps add to it.
template <class T, class I>
LS_KERNEL(kThreads)
entries_kernel(LS_ARGUMENT SweepsAdjoint<T, I> P, int64_t first, int64_t last, T* ga) {
  const bool own = P.A.a_step != 0;
  for_aside(own ? P.A.batch : 1, [&](int64_t b) {
    const Members members = own ? Members{b, b + 1} : Members{0, P.A.batch};
    for_items<1>(P.A.rows.nnz, [&](const auto& team, int64_t p) {
      T* const to = ga + b * P.A.rows.nnz + p;
      team.first([&] { *to = entry_gradient(P, p, first, last, members, *to); });
    });
  });
}

// Totals of partials (sums, chunks, k), or their roots: sum s, which is number s / batch of member s % batch,
// goes to out + (s % batch) out_step + (s / batch) k.
template <class T>
LS_KERNEL(kThreads)
totals_kernel(const T* partials, int64_t sums, int64_t batch, int64_t chunks, int64_t k, bool roots, T* out,
              int64_t out_step) {
  LS_SHARED double shared[kThreads];
  const Block<kThreads> block;
  const int width = columns_together(k);
  const int64_t tiles = (k + width - 1) / width;
  for_blocks(sums * tiles, [&](int64_t item) {
    const int64_t s = item / tiles, c0 = item % tiles * width;
    add_chunks(block, partials + s * chunks * k, chunks, k, c0, width, shared);
    T* const to = out + s % batch * out_step + s / batch * k + c0;
    block.each([&](int lane) {
      if (lane < width && c0 + lane < k)
        to[lane] = static_cast<T>(roots ? std::sqrt(shared[lane]) : shared[lane]);
    });
    block.sync();
  });
}

// out (members, rows): the sum of parts (batch, sweeps) over what they share.
template <class T>
LS_KERNEL(kThreads)
shared_sums_kernel(const T* parts, int64_t batch, int64_t sweeps, int64_t members, int64_t rows, T* out) {
  for_items<1>(members * rows, [&](const auto& team, int64_t item) {
    const int64_t m = item / rows, row = item % rows;
    const int64_t b0 = members > 1 ? m : 0, b1 = members > 1 ? m + 1 : batch;
    const int64_t it0 = rows > 1 ? row : 0, it1 = rows > 1 ? row + 1 : sweeps;
    T sum = 0;
    for (int64_t b = b0; b < b1; ++b)
      for (int64_t it = it1 - 1; it >= it0; --it) sum += parts[b * sweeps + it];
    team.first([&] { out[item] = sum; });
  });
}

// to = from, or -factor from, `count` numbers for each member.
template <class T>
LS_KERNEL(kThreads)
copy_kernel(const T* from, int64_t from_step, T* to, int64_t to_step, int64_t count, int64_t batch,
            const T* factor, int64_t factor_step) {
  for_aside(batch, [&](int64_t b) {
    for_items<1>(count, [&](const auto& team, int64_t o) {
      const T value = from[b * from_step + o];
      team.first([&] { to[b * to_step + o] = factor ? -factor[b * factor_step] * value : value; });
    });
  });
}

// learns[b, j] = 1 where a number of column j of v (batch, rows, k) is not 0; whoever finds one writes the
// same.
template <class T>
LS_KERNEL(kThreads)
learns_kernel(const T* v, int64_t rows, int64_t k, int64_t batch, T* learns) {
  for_aside(batch, [&](int64_t b) {
    for_items<1>(rows * k, [&](const auto& team, int64_t o) {
      T* const to = learns + b * k + o % k;
      team.first([&] {
        if (v[b * rows * k + o] != 0 && *to == 0) *to = 1;
      });
    });
  });
}

// c = gnorms / norms; at zero, where a norm has no derivative, its subgradient of least norm. any: 1 for each
// sweep of which one is not 0.
template <class T>
LS_KERNEL(kThreads)
norm_cotangents_kernel(const T* norms, const T* gnorms, int64_t sums, int64_t k, T* c, T* any) {
  for_items<1>(sums * k, [&](const auto& team, int64_t o) {
    team.first([&] {
      const T value = norms[o] == 0 || gnorms[o] == 0 ? T(0) : gnorms[o] / norms[o];
      c[o] = value;
      if (value != 0 && any[o / k] == 0) any[o / k] = 1;
    });
  });
}

template <class T>
void copy(const OnDevice& device, const T* from, int64_t from_step, T* to, int64_t to_step, int64_t count,
          int64_t batch, const T* factor = nullptr, int64_t factor_step = 0) {
  if (count == 0 || batch == 0) return;
  LS_LAUNCH(dim3(blocks_for(count, kThreads), blocks_aside(batch)), kThreads, device.stream,
            (from, from_step, to, to_step, count, batch, factor, factor_step), copy_kernel<T>);
  STD_CUDA_CHECK(cudaGetLastError());
}

template <class T>
void totals(const OnDevice& device, const T* partials, int64_t sums, int64_t batch, int64_t chunks, int64_t k,
            bool roots, T* out, int64_t out_step) {
  LS_LAUNCH(blocks_for(sums * k), kThreads, device.stream,
            (partials, sums, batch, chunks, k, roots, out, out_step), totals_kernel<T>);
  STD_CUDA_CHECK(cudaGetLastError());
}

// f.operator()<Shape>(), for rows whose product is given or computed.
template <class T, class F>
void with_shape(int64_t k, bool packs, bool given, int64_t mean, const F& f) {
  constexpr int V = 16 / sizeof(T);
  if (k == 1) {
    if (given || mean < 2)
      f.template operator()<VectorShape<1>>();
    else if (mean < 8)
      f.template operator()<VectorShape<2>>();
    else if (mean < 32)
      f.template operator()<VectorShape<8>>();
    else
      f.template operator()<VectorShape<32>>();
  } else if (packs) {
    if (k <= 4 * V)
      f.template operator()<ColumnsShape<4, V>>();
    else
      f.template operator()<ColumnsShape<16, V>>();
  } else {
    f.template operator()<ColumnsShape<8, 1>>();
  }
}

// What the forward and the adjoint have in common for one call.
template <class T, class I>
struct SweepsCall {
  const char* name;
  const SweepSizes& p;
  const Tensor& values;
  const OnDevice device;
  const int64_t nk, a_step;
  const Coefficients<T> coefficients;

  SweepsCall(const char* name_, const SweepSizes& p_, int64_t nnz, const Tensor& values_, const Tensor& scale,
             const std::optional<Tensor>& momentum)
      : name(name_),
        p(p_),
        values(values_),
        device(values_),
        nk(p_.nk()),
        a_step(p_.bv == 1 ? 0 : nnz),
        coefficients{data<T>(scale),
                     p_.momentum ? data<T>(momentum) : nullptr,
                     p_.bs == 1 ? 0 : p_.scales * p_.n,
                     p_.scales == 1 ? 0 : p_.n,
                     p_.bm == 1 ? 0 : p_.momenta,
                     p_.momenta == 1 ? 0 : 1} {}

  Tensor numbers(int64_t count) const { return new_empty(values, Size{std::max<int64_t>(count, 0)}); }
  Tensor zeros(int64_t count) const { return new_zeros(values, Size{std::max<int64_t>(count, 0)}); }
  RowPass<T, I> matrix(const DeviceStructure& S) const {
    RowPass<T, I> A{};
    A.rows = S.schedule<I>(1);
    A.idx = data<I>(S.idx), A.perm = data<I>(S.perm), A.a = data<T>(values), A.a_step = a_step;
    A.k = p.k, A.batch = p.batch;
    A.entries = takes_packs(A.idx) && takes_packs(A.perm) && takes_packs(A.a, a_step);
    return A;
  }
  int64_t mean(const DeviceStructure& S) const { return S.nnz() / std::max<int64_t>(p.n, 1); }
  bool packs(std::initializer_list<const T*> all) const {
    bool yes = p.k > 1 && p.k % (16 / sizeof(T)) == 0;
    for (const T* v : all) yes = yes && takes_packs(v);
    return yes;
  }
  // Does a sweep find what it reads in the cache? Not measured: half of it is taken to be there for that.
  bool stays_in_cache(int64_t nnz) const {
    const int64_t bytes = (p.bv * nnz + 8 * p.batch * nk) * static_cast<int64_t>(sizeof(T)) +
                          nnz * static_cast<int64_t>(sizeof(I));
    return bytes <= l2_bytes() / 2;
  }
  // S x for rows that a few threads each would be held up by.
  void multiply(const DeviceStructure& S, const T* x, int64_t x_step, T* y) const {
    row_pass<true, false, T, I>(
        S, values, {data<T>(values), x, nullptr, y, nullptr, a_step, x_step, 0, p.batch == 1 ? 0 : nk, 0},
        p.k, p.batch);
  }

  // From one member to the next, for vectors of a batch.
  template <class At>
  int64_t step(const At& at) const {
    return p.batch > 1 ? at(1) - at(0) : 0;
  }

  // Sweeps first <= it < last. `product`: a place for one, if rows are dealt out by the merge path.
  void forward(const DeviceStructure& S, Sweeps<T, I> P, int64_t first, int64_t last, T* product,
               bool packs) const {
    if (first == last) return;
    with_shape<T>(p.k, packs, product != nullptr, mean(S), [&]<class Shape>() {
      constexpr auto kernel = sweeps_kernel<Shape, T, I>;
      const int64_t items = P.template items<Shape>();
      if (!product && last - first > 1 && stays_in_cache(S.nnz()) &&
          resident_blocks<kernel, kThreads>() > 0) {
        STD_CUDA_CHECK((launch_resident<kernel, kThreads>(items, device.stream, P, first, last)));
        return;
      }
      P.given = product;
      for (int64_t it = first; it < last; ++it) {
        if (product) multiply(S, P.x.at(it, 0), step([&](int64_t b) { return P.x.at(it, b); }), product);
        LS_LAUNCH(blocks_for(items), kThreads, device.stream, (P, it, it + 1), sweeps_kernel<Shape, T, I>);
        STD_CUDA_CHECK(cudaGetLastError());
      }
    });
  }

  // The iterates before first, first, ..., last - 1, to where P has them, from those that are kept: with
  // momentum that before the first, and the first.
  void repeat(const DeviceStructure& S, const SweepsAdjoint<T, I>& P, int64_t first, int64_t last,
              const T* kept, int64_t kept_step, T* to, T* product, bool packs) const {
    const int64_t to_step = P.iterates_step;
    const bool before = p.momentum && (first > 0 || P.before);
    copy(device, kept + (p.momentum ? nk : 0), kept_step, to + nk, to_step, nk, p.batch);
    if (before) copy(device, kept, kept_step, to, to_step, nk, p.batch);
    Sweeps<T, I> again{P.A, nullptr, P.rows, coefficients, {}, P.b, nullptr, 0};
    again.coefficients.scale += coefficients.scale_at(0, first);
    if (p.momentum) again.coefficients.momentum += first * coefficients.momentum_sweep;
    // As if of endless many all were kept.
    again.x = {to + nk,
               before ? to : nullptr,
               nullptr,
               nullptr,
               to + nk,
               nullptr,
               nk,
               to_step,
               to_step,
               0,
               std::numeric_limits<int64_t>::max(),
               1,
               0,
               p.momentum};
    forward(S, again, 0, last - 1 - first, product, packs);
  }

  // Their adjoint. product, product_t: places for one with A and with A^T, if rows are dealt out so.
  void adjoint(const DeviceStructure& S, const DeviceStructure& St, SweepsAdjoint<T, I> P, int64_t first,
               int64_t last, T* product, T* product_t, bool packs) const {
    bool done = false;
    if (!product && !product_t && stays_in_cache(2 * S.nnz()))
      with_shape<T>(p.k, packs, false, mean(S), [&]<class Shape>() {
        constexpr auto kernel = adjoint_kernel<Shape, T, I>;
        if (resident_blocks<kernel, kThreads>() == 0) return;
        STD_CUDA_CHECK((launch_resident<kernel, kThreads>(P.template items<Shape>(), device.stream, P, first,
                                                          last, true, true)));
        done = true;
      });
    if (done) return;
    P.given = product, P.given_t = product_t;
    for (int64_t it = last - 1; it >= first; --it) {
      if (product && (P.gs || P.c))
        multiply(S, P.iterate(it, 0), step([&](int64_t b) { return P.iterate(it, b); }), product);
      with_shape<T>(p.k, packs, product != nullptr, mean(S), [&]<class Shape>() {
        LS_LAUNCH(blocks_for(p.batch / P.members() * P.rows.count), kThreads, device.stream,
                  (P, it, it + 1, true, false), adjoint_kernel<Shape, T, I>);
      });
      STD_CUDA_CHECK(cudaGetLastError());
      if (!P.goes_on(it)) continue;
      if (product_t) multiply(St, P.g_of(it), nk, product_t);
      with_shape<T>(p.k, packs, product_t != nullptr, mean(S), [&]<class Shape>() {
        LS_LAUNCH(blocks_for(P.template items<Shape>()), kThreads, device.stream,
                  (P, it, it + 1, false, true), adjoint_kernel<Shape, T, I>);
      });
      STD_CUDA_CHECK(cudaGetLastError());
    }
  }
};

// Numbers of partial sums, or of the cotangents of residuals, that are kept before they are added up.
constexpr int64_t kPartials = int64_t{1} << 22, kKept = int64_t{1} << 24, kFewestKept = 4;

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> csr_richardson_cuda(
    const Tensor& ptr, const Tensor& idx, const Tensor& blocks, const Tensor& values_, const Tensor& scale_,
    const std::optional<Tensor>& momentum_, const Tensor& b_, const Tensor& x0_,
    const std::optional<Tensor>& before_, int64_t iterations, int64_t stride) {
  const char* name = "csr_richardson";
  const Tensor values = dense(values_), scale = dense(scale_), b = dense(b_), x0 = dense(x0_);
  const std::optional<Tensor> momentum = dense(momentum_), before = dense(before_);
  const DeviceStructure S(name, values, ptr, idx, std::nullopt, blocks);
  check_device(name, values, {&scale, &b, &x0, momentum ? &*momentum : &values, before ? &*before : &values});
  const SweepSizes p(name, S, values, scale, momentum, b, iterations);
  const SweepResults out(name, p, b, x0, before, stride);
  const int64_t kept = p.kept(stride), slots = p.slots(stride);
  Tensor x = new_empty(b, out.x), norms = new_empty(b, out.norms), iterates = new_empty(b, out.iterates),
         last = new_empty(b, out.last);
  if (p.batch == 0 || p.k == 0) return {x, norms, iterates, last};
  dispatch(name, values, S.idx, [&]<class T, class I>() {
    const SweepsCall<T, I> call(name, p, S.nnz(), values, scale, momentum);
    const int64_t nk = p.nk(), all = p.batch * nk;
    const T *from = data<T>(x0), *old = p.momentum && before ? data<T>(*before) : nullptr;
    T *const x_at = mutable_data<T>(x), *const slots_at = mutable_data<T>(iterates);
    T* const last_at = out.gives_last ? mutable_data<T>(last) : nullptr;
    const auto start = [&](const T* v, T* to, int64_t step) {
      copy(call.device, v, nk, to, step, nk, p.batch);
    };
    if (kept > 0) start(from, slots_at + (p.pairs(stride) ? nk : 0), slots * nk);
    if (kept > 0 && p.pairs(stride)) start(old ? old : from, slots_at, slots * nk);
    if (iterations == 0) start(from, x_at, nk);
    if (out.gives_last && iterations == 0) start(old ? old : from, last_at, nk);
    if (out.gives_last && iterations == 1) start(from, last_at, nk);
    if (iterations == 0) return;

    const Chunks rows(p.n);
    const int64_t of_sweep = p.batch * rows.count * p.k,
                  together = std::clamp<int64_t>(kPartials / of_sweep, 1, iterations);
    Sweeps<T, I> P{call.matrix(S), nullptr, rows, call.coefficients, {}, data<T>(b), nullptr, 0};
    P.x = {from, old,        x_at, last_at,    slots_at, nullptr, nk,
           nk,   slots * nk, all,  iterations, stride,   kept,    p.momentum};
    const Tensor scratch = call.numbers(stride == 1 ? 0 : std::min(P.x.turns(), iterations - 1) * all);
    const Tensor partials = call.numbers(together * of_sweep);
    const Tensor product = call.numbers(S.blocks.size(0) > 1 ? all : 0);
    P.x.scratch = mutable_data<T>(scratch), P.partials = mutable_data<T>(partials);
    const bool packs = call.packs({P.b, from, old, x_at, last_at, slots_at, P.x.scratch});
    for (int64_t first = 0; first < iterations; first += together) {
      const int64_t end = std::min(first + together, iterations);
      P.partials_from = first;
      call.forward(S, P, first, end, S.blocks.size(0) > 1 ? mutable_data<T>(product) : nullptr, packs);
      totals(call.device, data<T>(partials), (end - first) * p.batch, p.batch, rows.count, p.k, true,
             mutable_data<T>(norms) + first * p.k, iterations * p.k);
    }
  });
  return {x, norms, iterates, last};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> csr_richardson_backward_cuda(
    const Tensor& ptr, const Tensor& idx, const Tensor& blocks, const Tensor& tptr, const Tensor& tidx,
    const Tensor& tperm, const Tensor& tblocks, const Tensor& values_, const Tensor& scale_,
    const std::optional<Tensor>& momentum_, const Tensor& b_, const std::optional<Tensor>& before_,
    const Tensor& iterates_, const Tensor& norms_, const Tensor& gx_, const std::optional<Tensor>& gnorms_,
    const std::optional<Tensor>& gbefore_, int64_t iterations, int64_t stride, bool need_values,
    bool need_scale, bool need_momentum, bool need_b, bool need_x0) {
  const char* name = "csr_richardson_backward";
  const SweepAdjointTensors in{dense(values_), dense(scale_),    dense(momentum_), dense(b_),
                               dense(before_), dense(iterates_), dense(norms_),    dense(gx_),
                               dense(gnorms_), dense(gbefore_)};
  const DeviceStructure S(name, in.values, ptr, idx, std::nullopt, blocks),
      St(name, in.values, tptr, tidx, tperm, tblocks);
  check_device(name, in.values, {&in.scale, &in.b, &in.iterates, &in.norms, &in.gx});
  for (const std::optional<Tensor>* t : {&in.momentum, &in.before, &in.gnorms, &in.gbefore})
    if (*t) check_device(name, in.values, {&**t});
  const SweepSizes p(name, S, in.values, in.scale, in.momentum, in.b, iterations);
  const SweepAdjointSizes out(name, S, St, p, in, stride,
                              {need_values, need_scale, need_momentum, need_b, need_x0});
  Tensor ga = new_zeros(in.values, out.values), gs = new_zeros(in.values, out.scale),
         gm = new_zeros(in.values, out.momentum), gb = new_zeros(in.values, out.b),
         gx0 = new_empty(in.values, out.x0), before_out = new_zeros(in.values, out.before);
  if (p.batch == 0 || p.nk() == 0) return {ga, gs, gm, gb, gx0, before_out};
  dispatch(name, in.values, S.idx, [&]<class T, class I>() {
    const SweepsCall<T, I> call(name, p, S.nnz(), in.values, in.scale, in.momentum);
    const OnDevice& device = call.device;
    const int64_t nk = p.nk(), all = p.batch * nk;
    const T* later = in.momentum && in.gbefore ? data<T>(*in.gbefore) : nullptr;
    if (iterations == 0) {
      copy(device, data<T>(in.gx), nk, mutable_data<T>(gx0), nk, nk, p.batch);
      if (out.gives_before && later) copy(device, later, nk, mutable_data<T>(before_out), nk, nk, p.batch);
      return;
    }
    const Tensor learns = call.zeros(p.batch * p.k);
    const auto look = [&](const T* v, int64_t rows) {
      if (!v) return;
      LS_LAUNCH(dim3(blocks_for(rows * p.k, kThreads), blocks_aside(p.batch)), kThreads, device.stream,
                (v, rows, p.k, p.batch, mutable_data<T>(learns)), learns_kernel<T>);
      STD_CUDA_CHECK(cudaGetLastError());
    };
    look(data<T>(in.gx), p.n), look(later, p.n), look(data<T>(in.gnorms), iterations);
    const Tensor c = call.numbers(in.gnorms ? in.norms.numel() : 0),
                 any = call.zeros(in.gnorms ? p.batch * iterations : 0);
    if (in.gnorms) {
      LS_LAUNCH(blocks_for(in.norms.numel(), kThreads), kThreads, device.stream,
                (data<T>(in.norms), data<T>(*in.gnorms), p.batch * iterations, p.k, mutable_data<T>(c),
                 mutable_data<T>(any)),
                norm_cotangents_kernel<T>);
      STD_CUDA_CHECK(cudaGetLastError());
    }

    SweepsAdjoint<T, I> P{};
    P.A = call.matrix(S), P.At = call.matrix(St);
    const Chunks rows(p.n);
    P.rows = rows, P.coefficients = call.coefficients, P.sweeps = iterations;
    P.before = out.has_before ? data<T>(*in.before) : nullptr;
    P.b = data<T>(in.b), P.learns = data<T>(learns);
    if (in.gnorms) P.c = data<T>(c), P.norms = data<T>(any);
    // Lambda begins where it comes to lie in gx0 after the last sweep.
    const Tensor other = call.numbers(p.momentum ? all : 0);
    T *const to = mutable_data<T>(gx0), *const aside = mutable_data<T>(other);
    const bool swapped = p.momentum && iterations % 2 == 1;
    P.lambda[0] = swapped ? aside : to, P.lambda[1] = p.momentum ? (swapped ? to : aside) : nullptr;
    copy(device, data<T>(in.gx), nk, P.lambda[0], nk, nk, p.batch);
    if (later) copy(device, later, nk, P.lambda[1], nk, nk, p.batch);
    P.has_later = later != nullptr;
    P.gb = need_b ? mutable_data<T>(gb) : nullptr, P.gs = need_scale ? mutable_data<T>(gs) : nullptr;
    P.gs_own = p.bs != 1, P.need_x0 = need_x0;
    const Tensor sums = call.numbers(out.gives_momentum ? iterations * p.batch * rows.count : 0);
    P.sums = out.gives_momentum ? mutable_data<T>(sums) : nullptr;

    const int64_t segment = stride == 1 ? iterations : std::min(stride, iterations);
    const int64_t together =
        need_values
            ? std::min(std::max<int64_t>(kKept / static_cast<int64_t>(sizeof(T)) / all, kFewestKept), segment)
            : segment;
    const Tensor g = call.numbers((need_values ? together : 1) * all);
    P.g = mutable_data<T>(g), P.g_step = need_values ? all : 0;
    const Tensor of_segment = call.numbers(stride == 1 ? 0 : (segment + 1) * all);
    P.iterates = stride == 1 ? data<T>(in.iterates) : data<T>(of_segment);
    P.iterates_step = (stride == 1 ? out.slots : segment + 1) * nk;
    const bool table = S.blocks.size(0) > 1, table_t = St.blocks.size(0) > 1;
    const Tensor product = call.numbers(table ? all : 0), product_t = call.numbers(table_t ? all : 0);
    T* const product_at = table ? mutable_data<T>(product) : nullptr;
    const bool packs = call.packs({P.b, P.before, P.iterates, to, aside, P.g});
    const bool reads_iterates = need_values || need_scale || in.gnorms || out.gives_momentum;

    for (int64_t end = iterations; end > 0;) {
      const int64_t begin = stride == 1 ? 0 : (end - 1) / stride * stride;
      if (stride > 1) {
        P.iterates_from = begin - 1;
        if (reads_iterates)
          call.repeat(S, P, begin, end, data<T>(in.iterates) + begin / stride * (p.momentum ? 2 : 1) * nk,
                      out.slots * nk, mutable_data<T>(of_segment), product_at, packs);
      }
      for (int64_t hi = end; hi > begin;) {
        const int64_t lo = std::max(begin, hi - together);
        P.g_from = lo;
        call.adjoint(S, St, P, lo, hi, product_at, table_t ? mutable_data<T>(product_t) : nullptr, packs);
        if (need_values && S.nnz() > 0) {
          LS_LAUNCH(dim3(blocks_for(S.nnz(), kThreads), blocks_aside(p.bv == 1 ? 1 : p.batch)), kThreads,
                    device.stream, (P, lo, hi, mutable_data<T>(ga)), entries_kernel<T, I>);
          STD_CUDA_CHECK(cudaGetLastError());
        }
        hi = lo;
      }
      end = begin;
    }
    if (out.gives_before)
      copy(device, static_cast<const T*>(P.lambda_of(0)), nk, mutable_data<T>(before_out), nk, nk, p.batch,
           P.coefficients.momentum, P.coefficients.momentum_member);
    if (out.gives_momentum) {
      const Tensor parts = call.numbers(p.batch * iterations);
      totals(device, data<T>(sums), iterations * p.batch, p.batch, rows.count, 1, false,
             mutable_data<T>(parts), iterations);
      LS_LAUNCH(blocks_for(p.bm * p.momenta, kThreads), kThreads, device.stream,
                (data<T>(parts), p.batch, iterations, p.bm, p.momenta, mutable_data<T>(gm)),
                shared_sums_kernel<T>);
      STD_CUDA_CHECK(cudaGetLastError());
    }
  });
  return {ga, gs, gm, gb, gx0, before_out};
}

}  // namespace learnsolve

LS_OPERATORS(m) {
  m.impl("csr_richardson", TORCH_BOX(&learnsolve::csr_richardson_cuda));
  m.impl("csr_richardson_backward", TORCH_BOX(&learnsolve::csr_richardson_backward_cuda));
}
