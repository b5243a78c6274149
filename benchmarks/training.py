"""A training step of every recipe against the same mathematics in dense and in sparse torch, op by op.

Loss, backward and one step of the same optimizer, from the same weights; the first losses are compared. gcn
runs the two layers of its recipe on a random graph of CiteSeer's size, so that nothing is downloaded.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, silu

import learnsolve as ls
from benchmarks.harness import OURS, Run, Task
from benchmarks.loops import textbook_cg
from learnsolve.recipes.heavyball import (
    HeavyballNetworkRecipe,
    HeavyballNetworkSettings,
    HeavyballRecipe,
    HeavyballSettings,
)
from learnsolve.recipes.jacobi import JacobiRecipe, JacobiSettings
from learnsolve.recipes.pcg import PcgRecipe, PcgSettings, current_factor
from learnsolve.recipes.training.recipe import Recipe

DENSE = 2_000  # unknowns, above which dense matrices are left out


def stepper(loss: Task, parameters: list[Tensor], optimizer: torch.optim.Optimizer) -> Callable[[], Task]:
    def step() -> float:
        for p in parameters:
            p.grad = None
        value = loss()
        value.backward()
        optimizer.step()
        return value.item()

    return lambda: step


def of_recipe(recipe: Recipe) -> Callable[[], Task]:
    return stepper(lambda: recipe.loss(0), list(recipe.model.parameters()), recipe.optimizer())


def like(
    recipe: Any, loss: Callable[..., Tensor], kind: type = torch.optim.Adam, **more: Any
) -> Callable[[], Task]:
    """The same step for other mathematics on copies of the recipe's parameters."""
    copies = [p.detach().clone().requires_grad_() for p in recipe.model.parameters()]
    return stepper(lambda: loss(*copies), copies, kind(copies, lr=recipe.settings.lr, **more))


def measure(run: Run, args: argparse.Namespace) -> None:
    for shape, vectors in ((16, 20),) if run.quick else ((16, 100), (64, 100), (32_768, 4)):
        with run.attempt(f"jacobi, {shape}"):
            jacobi(run, shape, vectors)
        with run.attempt(f"heavyball, {shape}"):
            heavyball(run, shape, vectors)
    for shape in ([8, 8],) if run.quick else ([8, 8], [64, 64]):
        with run.attempt(f"pcg, {shape}"):
            pcg(run, shape)
    for points in (15,) if run.quick else (15, 31, 63, 127):
        with run.attempt(f"V-cycles, {points}"):
            cycles(run, points)
    with run.attempt("heavyball_network"):
        network(run)
    with run.attempt("gcn"):
        gcn(run)


def made(Recipe: type, Settings: type, shape: Any = None, **options: Any) -> Any:
    settings = Settings(**options)
    if shape is not None:
        settings.problem.shape = shape
    settings.check()
    return Recipe(settings)


def matrices(A: ls.CSR) -> dict[str, Tensor]:
    sparse = {"torch CSR, op by op": A.to_torch()}
    return {"torch dense": A.to_dense()} | sparse if A.shape[0] <= DENSE else sparse


def jacobi(run: Run, shape: int, vectors: int) -> None:
    recipe = made(JacobiRecipe, JacobiSettings, shape, test_vectors=vectors)
    E, d = recipe.test_vectors, recipe.A.diagonal()
    b = torch.zeros_like(E)

    def loss(T: Tensor) -> Callable[[Tensor], Tensor]:
        def of(weight: Tensor) -> Tensor:
            x = E + (weight / d).unsqueeze(1) * (b - T @ E)
            return (x * (T @ x)).sum()

        return of

    columns = {OURS: of_recipe(recipe)} | {k: like(recipe, loss(T)) for k, T in matrices(recipe.A).items()}
    run.row(f"jacobi, n = {shape}, {vectors} vectors", columns, way="step")


def sweeps(T: Tensor, E: Tensor, alpha: Tensor, beta: Tensor, count: int) -> Tensor:
    """The heavy ball op by op, for b = 0."""
    x, before = E, E
    for _ in range(count):
        before, x = x, x - alpha * (T @ x) + beta * (x - before)
    return x


def heavyball(run: Run, shape: int, vectors: int) -> None:
    recipe = made(HeavyballRecipe, HeavyballSettings, shape, test_vectors=vectors, sweeps=12)
    E = recipe.test_vectors

    def loss(T: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        def of(alpha: Tensor, beta: Tensor) -> Tensor:
            x = sweeps(T, E, alpha, beta, 12)
            return (x * (T @ x)).sum()

        return of

    columns = {OURS: of_recipe(recipe)} | {k: like(recipe, loss(T)) for k, T in matrices(recipe.A).items()}
    run.row(f"heavyball, n = {shape}, {vectors} vectors", columns, way="step")


def pcg(run: Run, shape: list[int]) -> None:
    vectors = 10 if run.quick else 100
    recipe = made(PcgRecipe, PcgSettings, shape, test_vectors=vectors, guard=0.0)
    b, P, n = recipe.test_vectors, current_factor(recipe.model).pattern, recipe.A.shape[0]
    places = torch.stack((P.row_indices.long(), P.col_indices.long()))

    def loss(T: Tensor, dense: bool) -> Callable[[Tensor], Tensor]:
        def of(values: Tensor) -> Tensor:
            if dense:
                L = torch.zeros(n, n, dtype=b.dtype).index_put(tuple(places), values)
                M = lambda r: L @ (L.T @ r)  # noqa: E731
            else:
                L = torch.sparse_coo_tensor(places, values, (n, n), is_coalesced=True)
                M = lambda r: torch.sparse.mm(L, torch.sparse.mm(L.t(), r))  # noqa: E731
            norms = textbook_cg(lambda p: T @ p, M, b, recipe.settings.iterations)[1]
            return recipe._weigh(norms / torch.linalg.vector_norm(b, dim=0)).sum() / recipe.count

        return of

    decay = {"weight_decay": recipe.settings.weight_decay}
    columns = {OURS: of_recipe(recipe)} | {
        name: like(recipe, loss(T, "dense" in name), torch.optim.AdamW, **decay)
        for name, T in matrices(recipe.A).items()
        if n <= DENSE or "dense" not in name
    }
    run.row(f"pcg, n = {n}, {vectors} vectors", columns, way="step")


def cycles(run: Run, points: int) -> None:
    """V-cycles on all grids down to 3 x 3 of which all entries of P and all weights are trained."""
    count, vectors = 4, 10
    A, H = ls.problems.poisson((points, points)), ls.preconditioners.Hierarchy.linear((points, points))
    M = ls.preconditioners.AMG(A, hierarchy=H, weight=2 / 3)
    learned = ls.preconditioners.Trainable(M)
    errors = torch.randn(points**2, vectors, dtype=A.dtype, generator=torch.Generator().manual_seed(0))

    def ours() -> Callable[[], Task]:
        def loss() -> Tensor:
            E = ls.analysis.ErrorPropagator(A, learned.build(), sweeps=count)
            return E(errors).square().sum().log()

        parameters = list(learned.parameters())
        return stepper(loss, parameters, torch.optim.Adam(parameters, lr=1e-4))

    def dense() -> Callable[[], Task]:
        places = [(P.pattern.row_indices.long(), P.pattern.col_indices.long()) for P in H.prolongations]
        copies = [p.detach().clone().requires_grad_() for p in learned.parameters()]
        entries, weights, D = copies[: len(H)], copies[len(H) :], A.to_dense()

        def cycle(level: int, b: Tensor, levels: list[tuple[Tensor, Tensor, Tensor]], last: Tensor) -> Tensor:
            if level == len(levels):
                return last @ b
            T, P, scale = levels[level]
            x = scale * b
            x = x + P @ cycle(level + 1, P.T @ (b - T @ x), levels, last)
            return x + scale * (b - T @ x)

        def loss() -> Tensor:
            levels, T = [], D
            for P, at, values, w in zip(H.prolongations, places, entries, weights, strict=True):
                Q = torch.zeros(P.shape, dtype=T.dtype).index_put(at, values)
                levels.append((T, Q, (w / T.diagonal()).unsqueeze(1)))
                T = Q.T @ T @ Q
            last, U = torch.linalg.inv(T), errors
            for _ in range(count):
                U = U - cycle(0, D @ U, levels, last)
            return U.square().sum().log()

        return stepper(loss, copies, torch.optim.Adam(copies, lr=1e-4))

    columns = {OURS: ours()} | ({"torch dense": dense()} if points**2 <= DENSE else {})
    run.row(f"V-cycles, n = {points**2}, {len(H) + 1} levels, {vectors} vectors", columns, way="step")


def network(run: Run) -> None:
    count = 4 if run.quick else 256
    recipe = made(HeavyballNetworkRecipe, HeavyballNetworkSettings, matrices=count, held_out_matrices=2)
    A, E, model, settings = recipe.A, recipe.test_vectors, recipe.model, recipe.settings
    n = A.shape[0]
    rows, columns = A.pattern.row_indices.long(), A.pattern.col_indices.long()
    D = torch.zeros(count, n, n, dtype=A.dtype)
    D[:, rows, columns] = A.values
    blocks = sp.block_diag([sp.csr_array(M) for M in D.numpy()], format="csr")
    B = ls.CSR.from_scipy(sp.csr_array(blocks)).to_torch()

    def dense(T: Tensor, X: Tensor) -> Tensor:
        return T @ X

    def blockwise(T: Tensor, X: Tensor) -> Tensor:
        return (T @ X.reshape(count * n, -1)).reshape(count, n, -1)

    def loss(T: Tensor, by: Callable, power: Callable) -> Task:
        ones = torch.ones(count, n, 1, dtype=A.dtype)

        def of() -> Tensor:
            size = by(power(T, lambda v: v.abs()), ones).amax((-2, -1)).reshape(count, 1, 1)
            squares = by(power(T, lambda v: v * v), ones) / size**2
            diagonal = D.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) / size
            X = torch.cat((diagonal, by(T, ones) / size, squares), -1)
            for message, own in zip(model.messages, model.own, strict=True):
                H = by(T, X @ message.weight) / size
                X = silu(H + own(X))
            u, v = model.last(torch.cat((X.mean(-2), X.amin(-2), X.amax(-2)), -1)).unbind(-1)
            beta = torch.sigmoid(v).reshape(count, 1, 1)
            alpha = torch.sigmoid(u).reshape(count, 1, 1) * 2 * (1 + beta) / size
            x, before = E, E
            for _ in range(settings.sweeps):
                before, x = x, x - alpha * by(T, x) + beta * (x - before)
            return (x * by(T, x)).sum() / count

        return of

    def power_sparse(T: Tensor, f: Callable) -> Tensor:
        return torch.sparse_csr_tensor(T.crow_indices(), T.col_indices(), f(T.values()), T.shape)

    # All share the model's weights; lr = 0 keeps them, so that the first losses agree.
    def step(loss: Task) -> Callable[[], Task]:
        parameters = list(model.parameters())
        return stepper(loss, parameters, torch.optim.Adam(parameters, lr=0.0))

    columns_ = {
        OURS: step(lambda: recipe.loss(0)),
        "torch dense": step(loss(D, dense, lambda T, f: f(T))),
        "torch CSR, op by op": step(loss(B, blockwise, power_sparse)),
    }
    run.row(f"heavyball_network, {count} matrices, n = {n}", columns_, way="step")


def gcn(run: Run) -> None:
    nodes, edges, features, words, hidden, classes = (3_327, 9_104, 3_703, 32, 16, 6)
    if run.quick:
        nodes, edges, features, words = 60, 150, 40, 4
    draw = np.random.default_rng(0)
    i, j = draw.integers(0, nodes, (2, edges // 2))
    graph = sp.coo_array((np.ones(len(i)), (i, j)), shape=(nodes, nodes))
    graph = sp.csr_array(((graph + graph.T + sp.eye_array(nodes)) > 0).astype(np.float32))
    d = sp.diags_array(1 / np.sqrt(graph.sum(1)))
    bag = sp.coo_array(
        (
            np.full(nodes * words, 1 / words),
            (np.repeat(np.arange(nodes), words), draw.integers(0, features, nodes * words)),
        ),
        shape=(nodes, features),
    )
    A, X = (ls.CSR.from_scipy(sp.csr_array(S), dtype=torch.float32) for S in (d @ graph @ d, bag))
    labels = torch.from_numpy(draw.integers(0, classes, nodes))
    torch.manual_seed(0)
    layers = [ls.nn.GCNConv(features, hidden, True), ls.nn.GCNConv(hidden, classes, True)]

    def ours(A: ls.CSR, X: ls.CSR) -> Callable[..., Tensor]:
        def of(*weights: Tensor) -> Tensor:
            H = X @ weights[0]
            H = torch.relu(A @ H + weights[1])
            return cross_entropy(A @ (H @ weights[2]) + weights[3], labels)

        return of

    def step(loss: Callable[..., Tensor]) -> Callable[[], Task]:
        copies = [p.detach().clone().requires_grad_() for layer in layers for p in (layer.weight, layer.bias)]
        return stepper(lambda: loss(*copies), copies, torch.optim.Adam(copies, lr=0.01))

    def of_layers() -> Callable[[], Task]:
        parameters = [p for layer in layers for p in layer.parameters()]
        loss = lambda: cross_entropy(layers[1](A, torch.relu(layers[0](A, X))), labels)  # noqa: E731
        return stepper(loss, parameters, torch.optim.Adam(parameters, lr=0.01))

    columns = {
        "torch dense": step(ours(A.to_dense(), X.to_dense())),
        "torch CSR, op by op": step(ours(A.to_torch(), X.to_torch())),
        "torch COO, op by op": step(ours(A.to_torch(torch.sparse_coo), X.to_torch(torch.sparse_coo))),
    }
    columns = {OURS: of_layers()} | columns
    run.row(f"gcn, {nodes} nodes, {X.nnz} features", columns, way="step", dtype=torch.float32)
