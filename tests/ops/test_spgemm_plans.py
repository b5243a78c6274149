"""Plans of sparse products: made once, freed, bounded; memory and threads."""

import gc
import subprocess
import sys
import weakref

import pytest
import torch
from ops.spgemm_cases import random_mask, symbolic, with_normal_values
from reference import assert_same_bits, coordinates, grid, normal, power_law, random

from learnsolve import CSR, ops
from learnsolve.matrix import device_analysis
from learnsolve.ops.core import sparse_product

# --- plans ---


def test_a_plan_is_made_once(monkeypatch):
    made = []
    analysis, names = sparse_product._analysis, ("product_pattern", "row_product_blocks")
    names = (*names, "column_product_blocks", "product_starts")
    if device_analysis.everywhere:
        analysis, names = device_analysis, ("first_products", "product_plan")
    for name in names:
        real = getattr(analysis, name)
        monkeypatch.setattr(analysis, name, lambda *a, real=real, name=name: made.append(name) or real(*a))
    A = with_normal_values(random(9, 9, 0.4), grad=True)
    P = with_normal_values(random(9, 4, 0.4), grad=True)
    results = []
    for step in range(3):
        C = A.with_values(A.values * (1 + step)) @ A
        coarse = ops.galerkin(P, A)
        torch.autograd.grad(C.values.sum() + coarse.values.sum(), (A.values, P.values))
        results.append((C.pattern, coarse.pattern))
        if step == 0:
            first = len(made)
            assert made.count(names[0]) == 3
    assert len(made) == first
    assert all(r[0] is results[0][0] and r[1] is results[0][1] for r in results)


def test_plans_die_with_either_pattern():
    A, B = with_normal_values(random(9, 9, 0.4)), with_normal_values(random(9, 7, 0.4))
    mask = random_mask((9, 7))
    ops.spgemm(A, B, mask=mask)
    result = weakref.ref(ops.spgemm(A, B).pattern)
    positions = weakref.ref(A.pattern._planned(sparse_product._plan, B.pattern, None).positions)
    assert A.pattern.cache_bytes() > 0
    coordinates.cache_clear()
    others = weakref.ref(B.pattern), weakref.ref(mask)
    del mask
    gc.collect()
    assert others[1]() is None
    assert result() is not None
    del B
    gc.collect()
    assert others[0]() is None
    assert result() is None
    assert positions() is None
    assert A.pattern.cache_bytes() == 0
    owner = weakref.ref(A.pattern)
    A @ A
    del A
    gc.collect()
    assert owner() is None


def test_plan_cache_limit():
    """The bound is on 4 bytes a product, 12 on a device, no byte more."""
    S = random(9, 9, 0.4)
    bytes = (12 if device_analysis.everywhere else 4) * int(symbolic(S, S).data.sum())
    for limit, kept in ((bytes, True), (bytes - 1, False)):
        before = ops.set_spgemm_plan_limit(limit)
        A = with_normal_values(S)
        ops.spgemm(A, A)
        assert ops.set_spgemm_plan_limit(before) == limit
        assert (A.pattern._planned(sparse_product._plan, A.pattern, None).positions is not None) == kept


def test_plans_are_made_inside_transformations(planned):
    """Under torch.func and in inference mode, then used outside."""
    S = random(8, 8, 0.4)
    A = with_normal_values(S)

    def loss(v):
        return torch.sin((A.with_values(v) @ A).values).sum()

    first = torch.func.grad(loss)(A.values)
    with torch.inference_mode():
        B = CSR.from_scipy(S)
        B @ B
    v = A.values.clone().requires_grad_()
    loss(v).backward()
    torch.testing.assert_close(v.grad, first)
    (B @ B).values.sum()


# --- memory and threads ---

MEMORY = """
import resource, numpy as np, torch, learnsolve as ls
n, wide = 30_000, 40
torch.set_num_threads(1)
def banded(offsets):
    i = np.repeat(np.arange(n), len(offsets)); j = (i + np.tile(offsets, n)) % n
    order = np.lexsort((j, i))
    crow = torch.arange(0, n * len(offsets) + 1, len(offsets), dtype=torch.int32)
    return ls.SparsityPattern(crow, torch.as_tensor(j[order]).int(), (n, n))
P = banded(np.arange(wide))
A = ls.CSR(torch.ones(P.nnz, requires_grad=True), P)
P._structure(True)
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def products(limit):
    ls.ops.set_spgemm_plan_limit(limit)
    P.drop_caches(); P._structure(True)
    start = peak()
    C = A @ A
    C.values.backward(torch.ones_like(C.values))
    return peak() - start, C.nnz
used, nnz = products(0)
F = P.nnz * wide
bound = 60 * (P.nnz + nnz)
assert used < bound, (used, bound)
assert bound < 8 * F, "the bound does not tell O(nnz) from O(F)"
used, _ = products(2**34)
assert used < bound + 4 * F, (used, bound + 4 * F)
"""


@pytest.mark.slow
def test_memory():
    """O(nnz) without a plan, O(nnz + F) with one: a process of its own, whose peak is measured."""
    subprocess.run([sys.executable, "-c", MEMORY], check=True)


def test_same_bits_for_any_number_of_threads(planned):
    for S in (grid(5, 70), random(1500, 1500, 0.006), power_law(1200)):
        A = with_normal_values(S, torch.float32, grad=True)
        B = with_normal_values(S, torch.float32, seed=1, grad=True)

        def results(A=A, B=B):
            for mask in (None, A.pattern):
                C = ops.spgemm(A, B, mask=mask)
                g = normal((C.nnz,), torch.float32, 2)
                yield C.values
                for wanted in ((A.values, B.values), (A.values,), (B.values,)):
                    yield from torch.autograd.grad(C.values, wanted, g, retain_graph=True)

        assert_same_bits(results, (2, 3))
