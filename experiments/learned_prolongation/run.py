"""A network gives the prolongations of multigrid, for families of matrices; trained on small ones.

    grid   diffusion, bilinear elements, log-normal coefficients (Greenfeld et al., ICML 2019): from Black Box
    graph  Laplacians of Delaunay graphs, log-normal weights (Luz et al., ICML 2020): from Ruge-Stueben

Two grids in training; tested on larger matrices: the asymptotic convergence factor of V-cycles, up to 4000
unknowns also of W-cycles, up to 1200 of two grids. A cycle has a symmetric sweep of Gauss-Seidel before the
correction and one after it.
"""

import importlib
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from common import BLACK, BLUE, GRAY, Experiment, new_figure, table
from safetensors.torch import load_file, save_file
from torch import Tensor
from training import train

import learnsolve as ls
from learnsolve.preconditioners import AMG, Hierarchy, NeuralAMG

FAMILIES = ("grid", "graph")
RESULTS = Path(__file__).resolve().parent / "results"
STEPS = {"grid": 1500, "graph": 600}
ITERATIONS = 40


def factors(A: ls.CSR, M, block: Tensor | None) -> Tensor:
    """By how much the last of 40 cycles reduces a random error, in the energy norm: for each of a batch, or,
    with the block of each unknown, for each block of a block diagonal matrix."""
    E = ls.analysis.ErrorPropagator(A, M)
    x = torch.randn(A.shape[0], 1, dtype=A.dtype, generator=torch.Generator().manual_seed(0))
    x = x.expand(*A.batch_shape, A.shape[0], 1)
    for _ in range(ITERATIONS):
        x = E(x)
        energy = x * (A @ x)
        if block is None:
            size = energy.sum(-2, keepdim=True).sqrt()
            x = x / size
        else:
            size = energy.new_zeros(int(block.max()) + 1, 1).index_add(0, block, energy).sqrt()
            x = x / size[block]
    return size


@torch.no_grad()
def tested(family, network: NeuralAMG, quick: bool) -> dict[tuple[str, str], list[list[float]]]:
    """(size, cycle): factors with the classical prolongation and with the learned one."""
    found: dict[tuple[str, str], list[list[float]]] = {}
    for name, A, block in family.tests(quick):
        grids = [M(A).hierarchy for M in (network.classical, network)]
        for cycle, most in family.CYCLES.items():
            if (A.shape[0] if block is None else int(block.bincount().max())) > most:
                continue
            both = found.setdefault((name, cycle), [[], []])
            for used, into in zip(grids, both, strict=True):
                if cycle == "two grids":
                    M = AMG(A, hierarchy=Hierarchy(used.prolongations[:1]), symmetric=True)
                else:
                    M = AMG(A, hierarchy=used, cycle=cycle, symmetric=True)
                into += factors(A, M, block).reshape(-1).tolist()
    return found


def rows_of(found: dict, classical: str) -> list[dict]:
    rows = []
    for (size, cycle), both in found.items():
        old, new = (torch.tensor(values, dtype=torch.float64) for values in both)
        rows.append(
            {
                "matrices": size,
                "count": len(old),
                "cycle": cycle,
                classical: float(old.mean()),
                "deviation": float(old.std()),
                "learned": float(new.mean()),
                "its deviation": float(new.std()),
                "improved %": 100 * float((new < old).double().mean()),
                "mean of ratios": float((new / old).mean()),
            }
        )
    return rows


def figure(found: dict, classical: str, trained: str):
    title = f"Convergence factors on larger matrices, trained on {trained}"
    figure, axes = new_figure(title, "", "convergence factor; lines: means")
    for place, both in enumerate(found.values()):
        for shift, color, name, values in zip(
            (-0.2, 0.2), (GRAY, BLUE), (classical, "learned"), both, strict=True
        ):
            center = place + shift
            across = torch.linspace(center - 0.12, center + 0.12, len(values)).tolist()
            label = None if place else name
            axes.plot(across, values, ".", markersize=3, color=color, label=label)
            axes.hlines(sum(values) / len(values), center - 0.16, center + 0.16, color=BLACK)
    cycles = (f"{size}\n{c if c == 'two grids' else f'{c}-cycle'}" for size, c in found)
    axes.set_xticks(range(len(found)), list(cycles))
    axes.set_ylim(0, 1.05 * max(max(values) for both in found.values() for values in both))
    axes.legend(frameon=False, loc="lower right", markerscale=4)
    return figure


def run(experiment: Experiment, name: str) -> None:
    family = importlib.import_module(name)
    network = family.network()
    if experiment.args.trained:
        network.load_state_dict(load_file(RESULTS / f"{name}.safetensors"))
        training = json.loads((RESULTS / f"{name}.json").read_text())["training"]
    else:
        samples, held_out = (family.samples(network, experiment.quick, s) for s in ("train", "validation"))
        started, used = time.perf_counter(), time.process_time()
        history = train(network, samples, held_out, 12 if experiment.quick else STEPS[name])
        training = {
            "steps": history[-1]["step"],
            "seconds": time.perf_counter() - started,
            "processor seconds": time.process_time() - used,
            "history": history,
        }
    found = tested(family, network, experiment.quick)
    rows = rows_of(found, family.CLASSICAL)
    print(table(rows), flush=True)
    experiment.figure(f"{name}.png", figure(found, family.CLASSICAL, family.TRAINED))
    experiment.csv(f"{name}.csv", rows)
    weights = experiment.out / f"{name}.safetensors"
    save_file(network.state_dict(), weights)
    print(f"wrote {weights}")
    count = sum(p.numel() for p in network.parameters())
    experiment.json(f"{name}.json", family=name, weights=count, factors=rows, training=training)


def main() -> None:
    experiment = Experiment(
        __file__,
        __doc__,
        ("--family", {"choices": FAMILIES, "help": "one of them; default: all"}),
        ("--trained", {"action": "store_true", "help": "no training: test the weights in results/"}),
    )
    for name in FAMILIES if experiment.args.family is None else (experiment.args.family,):
        run(experiment, name)


if __name__ == "__main__":
    main()
