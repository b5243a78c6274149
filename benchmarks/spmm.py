"""Sparse times dense, forward and backward, compared with SciPy and torch (docs/performance.md).

    python benchmarks/spmm.py [--full] [--out FILE]

Times are medians in microseconds. "kernel": the operator alone; "call": `A @ x` on tensors that require grad,
with its graph; "bwd": the backward alone, both gradients. --full adds the 178.5 million nonzeros of the
public question on slow backward passes (needs 8 GB of memory and several minutes).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from timing import medians, table, triad_bandwidth, write

import learnsolve as ls

raw = torch.ops.learnsolve.csr_spmm.default
raw_backward = torch.ops.learnsolve.csr_spmm_backward.default


def irregular(n: int, seed: int = 0) -> sp.csr_array:
    """Rows of 1 to 60 entries in random columns: no uniform blocks."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(60, rng.geometric(0.12, size=n))
    crow = np.concatenate(([0], np.cumsum(lengths)))
    cols = rng.integers(0, n, size=crow[-1])
    S = sp.csr_array((rng.standard_normal(crow[-1]), cols, crow), shape=(n, n))
    S.sum_duplicates()
    return S


def compare(name: str, S: sp.csr_array, k: int, dtype: torch.dtype, threads: int, peers: bool) -> dict:
    torch.set_num_threads(threads)
    S = sp.csr_array(S.astype(np.float64 if dtype == torch.float64 else np.float32))
    A = ls.CSR.from_scipy(S)
    A.values.requires_grad_()
    shape = (S.shape[1],) if k == 1 else (S.shape[1], k)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, dtype=dtype, generator=generator, requires_grad=True)
    xd, vd = x.detach(), A.values.detach()
    forward, adjoint = A.pattern._structure(False), A.pattern._structure(True)
    y = A @ x
    g = torch.randn(y.shape, dtype=dtype, generator=generator)
    assert np.allclose(y.detach().numpy(), S @ xd.numpy(), rtol=1e-3, atol=1e-3)
    functions = {
        "scipy": lambda: S @ xd.numpy(),
        "kernel": lambda: raw(*forward, vd, xd, False),
        "call": lambda: A @ x,
        "bwd kernel": lambda: raw_backward(*adjoint, *forward[:2], forward[3], vd, g, xd),
        "bwd": lambda: torch.autograd.grad(y, (A.values, x), g, retain_graph=True),
    }
    if peers:
        T = A.detach().to_torch()
        C = A.detach().to_torch(torch.sparse_coo)
        X = x if k > 1 else x.unsqueeze(1)
        yt, yc = T @ X, torch.sparse.mm(C, X)
        G = g.reshape(yt.shape)
        functions |= {
            "torch csr": lambda: T @ X,
            "torch csr bwd x": lambda: torch.autograd.grad(yt, x, G, retain_graph=True),
            "torch coo": lambda: torch.sparse.mm(C, X),
            "torch coo bwd x": lambda: torch.autograd.grad(yc, x, G, retain_graph=True),
        }
    t = medians(functions)
    micro = {key: 1e6 * value for key, value in t.items()}
    least = A.nnz * (vd.element_size() + 4) + 4 * (S.shape[0] + 1) + vd.element_size() * k * sum(S.shape)
    return {
        "case": name,
        "k": k,
        "dtype": str(dtype).removeprefix("torch."),
        "threads": threads,
        "nnz": A.nnz,
        **micro,
        "kernel/scipy": t["kernel"] / t["scipy"],
        "call/scipy": t["call"] / t["scipy"],
        "bwd/fwd kernel": t["bwd kernel"] / t["kernel"],
        "bwd/call": t["bwd"] / t["call"],
        "GB/s": least / t["kernel"] / 1e9,
    }


def regression_matrix(
    m: int, n: int, length: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(crow, cols, values) of random rows of `length` entries, float32, int32, without copies."""
    rng = np.random.default_rng(seed)
    # One column from each of `length` equal slices: sorted and distinct without sorting 178.5 M numbers.
    width = n // length
    slices = np.arange(0, width * length, width, dtype=np.int32)
    cols = np.empty((m, length), dtype=np.int32)
    values = np.empty((m, length), dtype=np.float32)
    for begin in range(0, m, 50_000):
        block = slice(begin, min(begin + 50_000, m))
        cols[block] = rng.integers(0, width, size=cols[block].shape, dtype=np.int32)
        cols[block] += slices
        rng.standard_normal(out=values[block], dtype=np.float32)
    crow = np.arange(0, m * length + 1, length, dtype=np.int32)
    return crow, cols.reshape(-1), values.reshape(-1)


def regression_thread() -> dict:
    """y = A x with A of 850,000 x 210,000 and 0.1 % nonzeros, float32, two threads."""
    shape = m, n = 850_000, 210_000
    crow, cols, values = regression_matrix(m, n, 210)
    S = sp.csr_array((values, cols, crow), shape=shape)
    pattern = ls.SparsityPattern(torch.from_numpy(crow), torch.from_numpy(cols), shape)
    A = ls.CSR(torch.from_numpy(values), pattern)
    x = torch.randn(n, requires_grad=True)
    torch.set_num_threads(2)
    y = A @ x
    g = torch.randn_like(y)
    vg = A.with_values(A.values.clone().requires_grad_())
    yv = vg @ x
    t = medians(
        {
            "scipy": lambda: S @ x.detach().numpy(),
            "fwd": lambda: A @ x,
            "bwd x": lambda: torch.autograd.grad(y, x, g, retain_graph=True),
            "bwd both": lambda: torch.autograd.grad(yv, (vg.values, x), g, retain_graph=True),
        },
        seconds=3,
    )
    return {
        "case": "850k x 210k, 178.5 M nonzeros",
        **{f"{key} s": value for key, value in t.items()},
        "fwd/scipy": t["fwd"] / t["scipy"],
        "bwd x/fwd": t["bwd x"] / t["fwd"],
        "bwd both/fwd": t["bwd both"] / t["fwd"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="add the problem with 178.5 M nonzeros")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/spmm.json"))
    args = parser.parse_args()

    def poisson(*shape: int) -> sp.csr_array:
        return ls.problems.poisson(shape).to_scipy()

    triad = {threads: triad_bandwidth(threads) / 1e9 for threads in (1, 2)}
    print(f"triad bandwidth: {triad[1]:.1f} GB/s on one thread, {triad[2]:.1f} GB/s on two")
    f32, f64 = torch.float32, torch.float64
    line, plane = poisson(32768), poisson(1000, 1000)
    scattered = irregular(32768)
    cases = [
        ("1D Poisson 32768", line, 1, f64, 1, True),
        ("1D Poisson 32768", line, 1, f32, 1, True),
        ("1D Poisson 32768", line, 1, f64, 2, False),
        ("irregular 32768", scattered, 1, f64, 1, True),
        ("irregular 32768", scattered, 1, f32, 1, False),
        ("irregular 32768", scattered, 1, f64, 2, False),
        ("2D Poisson 1000^2", plane, 1, f64, 1, False),
        ("2D Poisson 1000^2", plane, 1, f32, 1, False),
        ("2D Poisson 1000^2", plane, 1, f64, 2, False),
        ("1D Poisson 16384", poisson(16384), 32, f64, 1, True),
        ("1D Poisson 16384", poisson(16384), 64, f64, 1, True),
        ("1D Poisson 16384", poisson(16384), 64, f32, 1, False),
        ("irregular 32768", scattered, 32, f32, 1, False),
    ]
    rows = [compare(*case) for case in cases]
    print(table(rows))
    thread = [regression_thread()] if args.full else []
    if thread:
        print(table(thread))
    write(args.out, "spmm", rows, triad_gb_s=triad, regression_thread=thread)


if __name__ == "__main__":
    main()
