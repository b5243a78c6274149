"""What learned preconditioners share: training through cg, states, copies, dtypes, torch.compile."""

import copy
import io
import pickle
import re

import pytest
import torch
from preconditioners.cases import CASES, matrix, spd
from reference import normal

import learnsolve as ls

P = ls.preconditioners
LEARNED = [c for c in CASES if isinstance(c.make(matrix(c)), P.Trainable)]
every = pytest.mark.parametrize("case", LEARNED, ids=[c.name for c in LEARNED])


def history_loss(solution: ls.solvers.Solution, gamma: float = 0.6) -> torch.Tensor:
    """Equation 28 of arXiv 2212.05159."""
    norms = solution.residual_norms
    w = gamma ** torch.arange(len(norms) - 1, -1, -1, dtype=norms.dtype)
    return ((w / w.sum()) @ (norms / norms[0])).mean()


def product(L: ls.CSR) -> P.Trainable:
    return P.Trainable(P.Factored(L, form="product"))


@every
@pytest.mark.parametrize("gradient", ["unrolled", "checkpointed"])
def test_the_compiled_loop_gives_the_parameters_the_same_gradient(case, gradient):
    if case.matrix != "spd":
        pytest.skip("cg needs a symmetric matrix")
    A = matrix(case)
    M, b = case.make(A), normal((A.shape[0], 3))
    found = []
    for preconditioner in (M, lambda r: M(r)):
        solution = ls.solvers.cg(A, b, M=preconditioner, rtol=0, maxiter=4, gradient=gradient)
        loss = history_loss(solution) + solution.x.square().mean()
        found.append((solution.x, solution.residual_norms, *torch.autograd.grad(loss, list(M.parameters()))))
    for fused, general in zip(*found, strict=True):
        assert torch.allclose(fused, general, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [lambda A: P.Trainable(P.Factored.bidiagonal(64)), lambda A: P.Trainable(P.IC0(A), positive="exp")],
    ids=["bidiagonal", "ic0"],
)
def test_training_lowers_the_loss_and_the_iterations(make):
    torch.manual_seed(0)
    A = ls.problems.poisson((8, 8))
    M, unseen = make(A), torch.randn(64, 16, dtype=torch.float64)
    solver = ls.solvers.PCG(M, rtol=0.0, maxiter=4)
    optimizer = torch.optim.AdamW(M.parameters(), lr=1e-2)

    def measure() -> tuple[float, int]:
        with torch.no_grad():
            loss = float(history_loss(solver(A, unseen)))
            return loss, sum(ls.solvers.cg(A, b, M=M, rtol=1e-6).iterations for b in unseen.T)

    loss, iterations = measure()
    for _ in range(40):
        optimizer.zero_grad()
        history_loss(solver(A, torch.randn(64, 32, dtype=torch.float64))).backward()
        optimizer.step()
    trained, fewer = measure()
    assert trained < 0.92 * loss
    assert fewer < 0.95 * iterations


@every
def test_weights_are_not_those_that_it_was_made_of(case):
    A = matrix(case)
    before = A.values.clone()
    M = case.make(A)
    for p in M.parameters():
        assert p.is_leaf
        with torch.no_grad():
            p.add_(1)
    assert torch.equal(A.values, before)


@every
def test_copies_and_pickles_are_equal_and_independent(case):
    M, r = case.make(matrix(case)), normal((20,))
    file = io.BytesIO()
    torch.save(M, file)
    file.seek(0)
    for other in (copy.deepcopy(M), pickle.loads(pickle.dumps(M)), torch.load(file, weights_only=False)):
        assert torch.equal(other(r), M(r))
        with torch.no_grad():
            for p in other.parameters():
                p.mul_(1.5)
        assert not torch.allclose(other(r), M(r))


@every
def test_precision_can_be_changed(case):
    M, r = case.make(matrix(case)), normal((20,))
    single = copy.deepcopy(M).float()
    assert single.dtype == torch.float32
    assert torch.allclose(single(r.float()).double(), M(r), rtol=1e-3, atol=1e-4)
    assert torch.allclose(single.double()(r), M(r), rtol=1e-4, atol=1e-5)
    for name, buffer in single.named_buffers():
        assert buffer.is_floating_point() != name.endswith("_indices")


@pytest.mark.cpu_only
@every
def test_to_another_device(case):
    M = case.make(matrix(case))
    if isinstance(M.M, P.AMG):
        with pytest.raises(NotImplementedError, match="a matrix on meta has none"):
            M.to("meta")
        assert all(t.device.type == "cpu" for t in M.parameters())
        return
    M = M.to("meta")
    assert M.device.type == "meta"
    assert all(t.is_meta for t in (*M.parameters(), *M.buffers()))
    if "FSAI" in case.name:
        assert M.L.pattern.device.type == "meta"
        assert M.L().values.is_meta


@every
def test_compiles(case):
    if case.name.endswith(("two rings", "tril(A)", "bidiagonal", "series, general")):
        pytest.skip("the same code as another row, on another pattern")
    M, r = case.make(matrix(case)), normal((20, 2)).requires_grad_()
    torch._dynamo.reset()  # which gives up on a function that it has compiled for eight modules
    compiled = torch.compile(M, fullgraph=True, backend="aot_eager")
    wanted = torch.autograd.grad(M(r).square().sum(), [r, *M.parameters()])
    found = torch.autograd.grad(compiled(r).square().sum(), [r, *M.parameters()])
    for f, w in zip(found, wanted, strict=True):
        assert torch.allclose(f, w, rtol=1e-10)


@every
def test_forward_mode_and_vmap_over_parameters(case):
    M, r = case.make(matrix(case)), normal((20,))
    parameters = {name: p.detach() for name, p in M.named_parameters()}
    apply = lambda p: torch.func.functional_call(M, p, (r,))  # noqa: E731
    tangents = {name: normal(p.shape, seed=3) for name, p in parameters.items()}
    _, along = torch.func.jvp(apply, (parameters,), (tangents,))
    h = 1e-6
    ends = [apply({k: p + s * h * tangents[k] for k, p in parameters.items()}) for s in (1, -1)]
    assert torch.allclose(along, (ends[0] - ends[1]) / (2 * h), rtol=1e-5, atol=1e-7)
    several = {name: torch.stack((p, 1.1 * p)) for name, p in parameters.items()}
    together = torch.vmap(apply)(several)
    for i in range(2):
        assert torch.allclose(together[i], apply({k: p[i] for k, p in several.items()}), rtol=1e-12)


@every
def test_a_state_is_for_one_pattern(case):
    A = matrix(case)
    M = case.make(A)
    if not any(key.endswith("indices") for key in M.state_dict()):
        pytest.skip("no pattern in its state")
    wider = ls.CSR.from_scipy((A.to_scipy() @ A.to_scipy()) * 1e-2 + A.to_scipy())
    small = ls.problems.poisson((3, 3))
    for source in (wider, small):
        if source is wider and case.name == "learned product, bidiagonal":
            continue  # which is of n alone
        learned_amg = lambda A: P.Trainable(P.AMG(A, max_coarse=3))  # noqa: E731
        other = learned_amg(source) if isinstance(M.M, P.AMG) else case.make(source)
        before = copy.deepcopy(M.state_dict())
        with pytest.raises(RuntimeError, match=r"weights belong to another pattern, .*indices"):
            M.load_state_dict(other.state_dict())
        assert all(torch.equal(v, before[k]) for k, v in M.state_dict().items() if k.startswith("L."))


def test_the_error_for_another_pattern_names_the_place():
    A, n = spd(), 20
    M = product(A.tril())
    moved = A.tril().to_scipy().tolil()
    moved[3, 2], moved[3, 1] = 0, 1.0
    other = product(ls.CSR.from_scipy(moved.tocsr()))
    at = int((M.L.col_indices != other.L.col_indices).nonzero()[0])
    words = f"col_indices at {at} is 1 there and 2 here; make the module on SparsityPattern"
    with pytest.raises(RuntimeError, match=re.escape(words)):
        M.load_state_dict(other.state_dict())
    state = other.state_dict()
    pattern = ls.SparsityPattern(state["L.crow_indices"], state["L.col_indices"], (n, n))
    again = P.Trainable(P.Factored.from_pattern(pattern))
    again.load_state_dict(state)
    assert torch.equal(again(normal((n,))), other(normal((n,))))


def test_two_modules_on_one_pattern_go_into_one_file(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    A = spd()
    make = lambda: torch.nn.ModuleList([product(A), product(2.0 * A)])  # noqa: E731
    pair = make()
    safetensors.save_file(pair.state_dict(), tmp_path / "pair.safetensors")
    with torch.no_grad():
        pair[1].L.values.zero_()
    pair.load_state_dict(safetensors.load_file(tmp_path / "pair.safetensors"))
    assert torch.equal(pair[1].L.values, 2 * A.values)


def test_int32_patterns():
    A = spd()
    narrow = ls.CSR(A.values, A.pattern.to(dtype=torch.int32))
    r = normal((20,))
    for make in (
        lambda A: P.Trainable(P.FSAI(A)),
        lambda A: P.Trainable(P.IC0(A), positive="exp"),
        lambda A: P.Trainable(P.ILU0(A), positive="exp"),
        lambda A: P.Trainable(P.Polynomial.chebyshev(A, 3)),
        lambda A: P.SPAI(A, pattern=P.lower_pattern(A, 2)),
    ):
        assert torch.allclose(make(narrow)(r), make(A)(r), rtol=1e-13)
