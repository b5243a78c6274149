"""Every fact that problems state, on small matrices of every problem."""

import inspect
import math

import pytest
import torch

import learnsolve as ls
from learnsolve.problems import PROPERTIES, MatrixProperties


def kappa(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).exp()


RING = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 4], [4, 0], [5, 6]]).T
BOTH = torch.cat((RING, RING.flip(0)), 1)
WIND = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4).expand(2, 3, 4)
MESH = ls.problems.random_mesh(20, seed=0)
FREE_MESH = ls.problems.TriangleMesh(MESH.points, MESH.triangles, torch.zeros_like(MESH.fixed))
# A density of zero around one point.
HOLLOW = (MESH.triangles != MESH.free[0]).all(1).double()

# (arguments, keywords) of small matrices; what PROPERTIES[name] says must hold for each.
CASES = {
    "anisotropic": [
        (((4, 5), epsilon, theta), {"discretization": d})
        for d in ("fd", "fe")
        for epsilon, theta in [(0.1, 0.0), (1e-3, 0.4), (1.0, 0.4), (50.0, -1.0), (0.1, math.pi / 2)]
    ],
    "convection_diffusion": [
        ((0 * WIND,), {}),
        ((WIND,), {}),
        ((WIND, 50.0), {"scheme": "central"}),
        ((-WIND, 50.0), {"scheme": "central", "dimensions": 2}),
    ],
    "diffusion": [
        ((kappa(4, 3),), {}),
        ((kappa(2, 3, 2),), {}),
        ((torch.full((4, 3), 2.5),), {}),
        ((torch.full((1, 5), 0.5, dtype=torch.float64),), {}),
        ((torch.full((3, 2, 4), 2.0, dtype=torch.float64),), {"dimensions": 3}),
    ],
    "gallery": [((name,), {}) for name in ("unit_square", "recirc_flow", "knot", "airfoil", "unit_cube")],
    "graph_laplacian": [
        ((BOTH,), {}),
        ((RING, torch.arange(6.0, dtype=torch.float64)), {"n": 9, "both_directions": False}),
        ((BOTH,), {"shift": 0.25}),
    ],
    "grounded_laplacian": [
        ((BOTH, torch.arange(1.0, 13.0, dtype=torch.float64), torch.arange(7) % 6 == 0), {}),
        ((RING, torch.ones(6, dtype=torch.float64), torch.arange(7) == 3), {"both_directions": False}),
    ],
    "helmholtz": [
        ((kappa(4, 3),), {}),
        ((torch.full((4, 3), 0.5, dtype=torch.float64),), {}),
        ((torch.full((9,), 1.5, dtype=torch.float64),), {}),
        ((torch.full((2, 3, 2), 1.0, dtype=torch.float64),), {"shift": -1.0}),
        ((torch.full((4, 3), 1.0, dtype=torch.float64),), {"shift": 0.5, "dimensions": 2}),
    ],
    "matrix_market": [(("general",), {}), (("symmetric",), {})],
    "nodal_diffusion": [
        ((k,), {"stencil": s, **options})
        for k in (kappa(4, 3), torch.full((3, 5), 2.5, dtype=torch.float64))
        for s in ("fd", "q1")
        for options in ({}, {"boundary": "periodic"}, {"boundary": "periodic", "shift": 0.1})
    ],
    "p1_mass": [((MESH,), {}), ((FREE_MESH,), {}), ((MESH, HOLLOW), {})],
    "p1_stiffness": [((MESH,), {}), ((FREE_MESH,), {}), ((MESH, 1 + HOLLOW), {})],
    "poisson": [
        *((((n,),), {}) for n in (1, 2, 9)),
        *(((shape,), {"stencil": s}) for shape in ((1, 1), (4, 5)) for s in ("fd", "q1")),
        (((2, 3, 4),), {}),
        *(((shape,), {"boundary": "periodic"}) for shape in (3, (4, 5), (3, 6, 4))),
        (((4, 7),), {"stencil": "q1", "boundary": "periodic"}),
    ],
    "random_spd": [((30, seed), {"density": 0.05}) for seed in (0, 1)],
}
FILES = {
    "general": "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n2 1 -4\n",
    "symmetric": "%%MatrixMarket matrix coordinate real symmetric\n2 2 2\n1 1 4\n2 2 1\n",
}
ALL = [(name, *case) for name, cases in CASES.items() for case in cases]


# True of every example that pyamg has today, but nothing that gallery could promise of the next.
BY_CHANCE = {("gallery", "positive_semidefinite")}


def holds(fact, D):
    if fact == "symmetric":
        return torch.equal(D, D.T)
    # x^T A x = x^T (A + A^T) x / 2, also of a nonsymmetric matrix.
    eigenvalues = torch.linalg.eigvalsh((D + D.T) / 2)
    # eigvalsh errs by a small multiple of u ||A||; no positive eigenvalue here is as small as that.
    rounding = 1e-13 * float(eigenvalues.abs().max())
    return float(eigenvalues[0]) > (rounding if fact == "positive_definite" else -rounding)


@pytest.fixture
def make(tmp_path):
    def make(name, args, keywords):
        if name == "matrix_market":
            path = tmp_path / "m.mtx"
            path.write_text(FILES[args[0]])
            args = (path,)
        return getattr(ls.problems, name)(*args, **keywords).to_dense().double()

    return make


def test_every_problem_states_its_properties():
    no_matrices = {"dataset", "delaunay_graph", "gaussian_field", "random_mesh"}
    functions = {n for n in ls.problems.__all__ if inspect.isfunction(getattr(ls.problems, n))}
    assert set(PROPERTIES) == functions - no_matrices
    assert set(PROPERTIES) == set(CASES)
    for name, facts in PROPERTIES.items():
        assert isinstance(facts, MatrixProperties)
        assert facts.formula, name
        assert facts.source, name


@pytest.mark.parametrize("fact", ["symmetric", "positive_definite", "positive_semidefinite"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_fact(name, fact, make):
    """A stated fact holds for every case; one that is not stated holds for some and not for others."""
    found = {holds(fact, make(name, *case)) for case in CASES[name]}
    stated = getattr(PROPERTIES[name], fact)
    if stated is not None:
        assert found == {stated}
    elif (name, fact) not in BY_CHANCE:
        assert found == {True, False}


def known(name, args, keywords):
    """Does the problem state the eigenvalues of this case?"""
    if name == "poisson":
        return True
    if name in ("diffusion", "helmholtz", "nodal_diffusion"):
        return bool((args[0] == args[0].flatten()[0]).all())
    if name == "anisotropic":
        _, epsilon, theta = args
        return epsilon == 1.0 or theta in (0.0, math.pi / 2)
    return False


@pytest.mark.parametrize(("name", "args", "keywords"), ALL)
def test_eigenvalues(name, args, keywords, make):
    formula = PROPERTIES[name].eigenvalues
    if formula is None:
        assert not known(name, args, keywords)
        return
    if not known(name, args, keywords):
        with pytest.raises(ValueError, match=f"{name}: the eigenvalues are known for"):
            formula(*args, **keywords)
        return
    reference = torch.linalg.eigvalsh(make(name, args, keywords))
    stated = formula(*args, **keywords)
    assert stated.dtype == torch.float64
    assert stated.shape == reference.shape
    torch.testing.assert_close(stated, reference, rtol=1e-12, atol=1e-13 * float(reference.max()))


def test_eigenvalue_functions_take_the_arguments_of_their_problem():
    """All of them but where the matrix is to live, which rows of it, and in which precision."""
    for name, facts in PROPERTIES.items():
        if facts.eigenvalues is not None:
            of_problem = inspect.signature(getattr(ls.problems, name)).parameters
            of_formula = inspect.signature(facts.eigenvalues).parameters
            assert list(of_formula) == [p for p in of_problem if p not in ("dtype", "device", "rows")], name
            assert all(of_formula[p].kind == of_problem[p].kind for p in of_formula), name


def test_small_eigenvalues_are_accurate():
    """4 sin^2 keeps the digits that 2 - 2 cos would lose."""
    n = 100_000
    smallest = PROPERTIES["poisson"].eigenvalues((n,))[0].item()
    h = math.pi / (n + 1)
    assert smallest == pytest.approx(h**2 * (1 - h**2 / 12), rel=1e-14)


def test_null_space_of_the_graph_laplacian():
    assert "each connected component" in PROPERTIES["graph_laplacian"].null_space
    L = ls.problems.graph_laplacian(BOTH, n=9)
    components = torch.zeros(9, 4, dtype=torch.float64)
    for column, nodes in enumerate(([0, 1, 2, 3, 4], [5, 6], [7], [8])):
        components[nodes, column] = 1
    assert torch.equal(L @ components, torch.zeros_like(components))
    eigenvalues = torch.linalg.eigvalsh(L.to_dense())
    assert int((eigenvalues.abs() < 1e-13).sum()) == 4
