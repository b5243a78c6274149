"""A `Trainable`: where it starts, positive numbers, training, states, files, copies, torch.compile."""

import copy
import io
import pickle
import re

import pytest
import torch
from preconditioners.cases import CASES, general, matrix, spd
from reference import normal

import learnsolve as ls
from learnsolve import _library

P = ls.preconditioners
T = P.Trainable
LEARNED = [c for c in CASES if isinstance(c.make(matrix(c)), T)]
positives = pytest.mark.parametrize("positive", ["exp", "softplus"])


def indefinite() -> ls.CSR:
    """Whose pivots have any sign."""
    return ls.ops.scale_rows(general(), torch.where(torch.arange(20) % 3 == 0, -1.0, 1.0).double())


@positives
@pytest.mark.parametrize("make", [P.IC, P.MIC, lambda A: P.IC(A, shift=0.5), lambda A: P.ICT(A, max_fill=1)])
def test_starts_as_the_incomplete_cholesky_factor(make, positive):
    A, r = spd(), normal((20, 2))
    start = make(A)
    M = T(start, positive=positive)
    assert torch.allclose(M.L().values, start.L.values, rtol=1e-14, atol=0)
    assert M.L.pattern is start.L.pattern
    assert torch.allclose(M(r), start(r), rtol=1e-12)
    assert M.symmetric


@positives
def test_starts_as_the_incomplete_lu_factors(positive):
    A, r = indefinite(), normal((20, 2))
    start = P.ILU(A)
    M = T(start, positive=positive)
    assert torch.allclose(M.U().values, start.U.values, rtol=1e-14, atol=0)
    assert torch.allclose(M(r), start(r), rtol=1e-10)
    assert torch.allclose(M.T(r), start.T(r), rtol=1e-10)
    assert not T(P.ILU(spd())).symmetric
    assert M.pcg_form() is None


def test_the_ones_of_L_are_not_learned():
    start = P.ILU(general())
    M = T(start, positive="exp")
    assert M.L.values.numel() == start.L.tril(-1).nnz
    assert {name for name, _ in M.named_parameters()} == {"L.values", "U.off_diagonal", "U.log_diagonal"}
    without = T(P.FactorPreconditioner(start.L.tril(-1), start.U), positive="exp")
    assert torch.equal(without(normal((20,))), M(normal((20,))))


@positives
@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_positive_definite_for_all_parameters(scale, positive):
    M = T(P.IC(spd()), positive=positive)
    for seed in range(4):
        with torch.no_grad():
            for i, p in enumerate(M.parameters()):
                p.copy_(scale * normal(p.shape, seed=10 * seed + i))
        assert (M.L().diagonal() > 0).all()
        x = normal((20, 5), seed=seed)
        y = ls.ops.sptrsv(M.L(), x)
        assert ((x * M(x)).sum(0) > 0).all()
        assert torch.allclose((x * M(x)).sum(0), y.square().sum(0), rtol=1e-6)


def test_signs_of_U_stay():
    M = T(P.ILU(indefinite()), positive="exp")
    before = M.U().diagonal().sign()
    assert (before < 0).any()
    with torch.no_grad():
        M.U.log_diagonal.copy_(normal((20,)))
    assert torch.equal(M.U().diagonal().sign(), before)


@pytest.mark.parametrize("positive", [None, "exp", "softplus"])
def test_weights_of_the_diagonal(positive):
    A, r = spd(), normal((20, 2))
    d = A.diagonal().unsqueeze(1)
    assert torch.allclose(T(P.Jacobi(A), positive=positive)(r), r / d, rtol=1e-14)
    w = torch.linspace(0.5, 60, 20, dtype=torch.float64)
    M = T(P.Jacobi(A, w), positive=positive)
    assert torch.allclose(M.weight(), w, rtol=1e-14)
    assert torch.allclose(M(r), w.unsqueeze(1) * r / d, rtol=1e-14)
    with torch.no_grad():
        next(M.parameters()).copy_(normal((20,)) * 5)
    assert bool((M.weight() > 0).all()) == (positive is not None)


def test_weights_for_another_matrix():
    A, B = spd(), spd() * 3.0
    M = T(P.Jacobi(A, 0.7), positive="softplus")
    N = M.on(P.Jacobi(B))
    assert N.weight is M.weight
    assert torch.allclose(N(normal((20,))) * 3, M(normal((20,))), rtol=1e-14)
    other = T(P.Jacobi(B))
    other.load_state_dict(T(P.Jacobi(A, 0.7)).state_dict())
    assert set(other.state_dict()) == {"weight.values"}
    with pytest.raises(RuntimeError, match="raw_values"):  # of another parametrization
        other.load_state_dict(M.state_dict())


def test_assign():
    A, B, r = spd(), spd() * 2.0, normal((20,))
    M = T(P.IC(A), positive="exp")
    kept = [id(p) for p in M.parameters()]
    assert M.assign_(P.IC(B)) is M
    assert [id(p) for p in M.parameters()] == kept
    assert torch.equal(M(r), T(P.IC(B), positive="exp")(r))
    M = T(P.ILU(general()), positive="exp")
    M.assign_(P.ILU(-general()))
    assert torch.equal(M(r), T(P.ILU(-general()), positive="exp")(r))


@pytest.mark.parametrize("case", LEARNED, ids=lambda c: c.name)
def test_files(case, tmp_path):
    """Of factors and diagonals a file is enough; of others M is the matrix and what is not learned."""
    pytest.importorskip("safetensors")
    A, r, path = matrix(case), normal((20,)), tmp_path / "M.safetensors"
    M = case.make(A)
    start = type(M.M)
    with torch.no_grad():
        for p in M.parameters():
            p.mul_(1.25)
    M.save(path)
    if start in (P.FactorPreconditioner, P.Diagonal) and case.name != "learned ILU, U alone":
        again = P.load(path).to(r.device)
        assert torch.equal(again(r), M(r))
        assert (again.symmetric, again.batch_shape) == (M.symmetric, M.batch_shape)
        assert not any(p.requires_grad for p in again.parameters())
    else:
        with pytest.raises(ValueError, match=f"load: .* the parameters of a {start.__name__}, .*Pass M="):
            P.load(path)
    fresh = case.make(A).requires_grad_(False).build()
    assert torch.equal(P.load(path, M=fresh).to(r.device)(r), M(r))


def test_files_of_batches(tmp_path):
    pytest.importorskip("safetensors")
    A = spd()
    M = T(P.IC(A.with_values(torch.stack((A.values, 2 * A.values)))), positive="exp")
    M.save(tmp_path / "M")
    r = normal((20, 1))
    assert torch.equal(P.load(tmp_path / "M").to(r.device)(r), M(r))


def test_files_that_do_not_fit(tmp_path):
    pytest.importorskip("safetensors")
    path = tmp_path / "M.safetensors"
    T(P.Polynomial.chebyshev(spd(), 3)).save(path)
    with pytest.raises(ValueError, match=r"load: .* does not fit M \(Trainable: learn must be one or more"):
        P.load(path, M=P.IC(spd()))
    with pytest.raises(ValueError, match=r"does not fit its settings, coefficients\.values has shape"):
        P.load(path, M=P.Polynomial(spd(), [1.0], interval=(0.0, 1.0)))
    P.PreCorrector(rounds=1).save(path)
    with pytest.raises(ValueError, match=r"M= is for a Trainable, and .* is of a PreCorrector"):
        P.load(path, M=P.IC(spd()))


def test_a_class_of_ones_own_may_build():
    class Scale(T):
        symmetric = True

        def __init__(self, n):
            self.shape = (n, n)
            self.weight = torch.nn.Parameter(torch.linspace(0.5, 1, n).double())

        def build(self):
            return P.Diagonal(self.weight)

    M, A, b = Scale(20), spd(), normal((20,))
    assert torch.equal(M(b), M.weight * b)
    solution = ls.solvers.cg(A, b, M=M, iterations=3, gradient="unrolled")
    assert solution.backend == "compiled"
    solution.residual_norms[-1].backward()
    assert M.weight.grad is not None
    with pytest.raises(NotImplementedError, match="Scale must define settings"):
        M.save("never")


F, J = P.FactorPreconditioner, P.Jacobi
every = pytest.mark.parametrize("case", LEARNED, ids=[c.name for c in LEARNED])


def history_loss(solution: ls.solvers.Solution, gamma: float = 0.6) -> torch.Tensor:
    """Equation 28 of arXiv 2212.05159."""
    norms = solution.residual_norms
    w = gamma ** torch.arange(len(norms) - 1, -1, -1, dtype=norms.dtype)
    return ((w / w.sum()) @ (norms / norms[0])).mean()


def product(L: ls.CSR) -> P.Trainable:
    return P.Trainable(P.FactorPreconditioner(L, form="product"))


@every
@pytest.mark.parametrize("gradient", ["unrolled", "checkpointed"])
def test_the_compiled_loop_gives_the_parameters_the_same_gradient(case, gradient):
    if case.matrix != "spd":
        pytest.skip("cg needs a symmetric matrix")
    A = matrix(case)
    M, b = case.make(A), normal((A.shape[0], 3))
    found = []
    for preconditioner in (M, lambda r: M(r)):
        solution = ls.solvers.cg(A, b, M=preconditioner, iterations=4, gradient=gradient)
        loss = history_loss(solution) + solution.x.square().mean()
        found.append((solution.x, solution.residual_norms, *torch.autograd.grad(loss, list(M.parameters()))))
    for fused, eager in zip(*found, strict=True):
        assert torch.allclose(fused, eager, rtol=1e-8, atol=1e-12)


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
        with pytest.raises(NotImplementedError, match="a matrix on meta has no values"):
            M.to("meta")
        assert all(t.device.type == "cpu" for t in M.parameters())
        return
    M = M.to("meta")
    assert M.device.type == "meta"
    assert all(t.is_meta for t in (*M.parameters(), *M.buffers()))
    if "FSAI" in case.name:
        assert M.L.pattern.device.type == "meta"
        assert M.L().values.is_meta


@pytest.mark.rows(2)
@pytest.mark.skipif(
    _library._torch_version() < (2, 12), reason="torch.compile reads attributes of an object from 2.12 on"
)
@every
def test_compiles(case):
    same = ("two rings", "tril(A)", "bidiagonal", "general", "softplus", "AMG, exp", "product, exp")
    if case.name.endswith((*same, "IC, exp", "U alone", "Jacobi, exp")):
        pytest.skip("the same code as another row, on another pattern or of another parameter")
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
    words = f"col_indices at {at} is 1 there and 2 here. Make the module on SparsityPattern"
    with pytest.raises(RuntimeError, match=re.escape(words)):
        M.load_state_dict(other.state_dict())
    state = other.state_dict()
    pattern = ls.SparsityPattern(state["L.crow_indices"], state["L.col_indices"], (n, n))
    again = P.Trainable(P.FactorPreconditioner.from_pattern(pattern))
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
        lambda A: P.Trainable(P.IC(A), positive="exp"),
        lambda A: P.Trainable(P.ILU(A), positive="exp"),
        lambda A: P.Trainable(P.Polynomial.chebyshev(A, 3)),
        lambda A: P.SPAI(A, pattern=P.lower_pattern(A, 2)),
    ):
        assert torch.allclose(make(narrow)(r), make(A)(r), rtol=1e-13)
