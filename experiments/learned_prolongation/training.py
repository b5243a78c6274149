"""How a network that corrects prolongations is trained: the same for grids and for graphs."""

import copy

import torch
from torch import Tensor

import learnsolve as ls
from learnsolve.preconditioners import AMG, Hierarchy, NeuralAMG

RATE, CYCLES, COLUMNS = 3e-3, 3, 8
VALIDATED = 100  # steps between two evaluations


class Sample:
    """Two grids as `NeuralAMG.start` gives them, and random errors of which all modes have the same energy:
    N(0, A^-1)."""

    def __init__(self, grids):
        self.grids, self.L = grids, torch.linalg.cholesky(grids.A.to_dense())

    def errors(self, generator: torch.Generator) -> Tensor:
        shape = (*self.L.shape[:-1], COLUMNS)
        noise = torch.randn(shape, dtype=self.L.dtype, generator=generator)
        return torch.linalg.solve_triangular(self.L.mT, noise, upper=True)

    def loss(self, network: NeuralAMG, generator: torch.Generator) -> Tensor:
        """(tr(E^2K) / n)^(1/2K) by random vectors, E the error propagator of two grids, K cycles."""
        A, error = self.grids.A, self.errors(generator)
        M = AMG(A, hierarchy=Hierarchy([network.prolongation(self.grids)]), symmetric=True)
        count = error.shape[-1] * error.shape[-2]
        error = ls.analysis.ErrorPropagator(A, M, sweeps=CYCLES)(error)
        return (ls.ops.quadratic_form(A, error, symmetric=True) / count).pow(1 / (2 * CYCLES)).mean()


@torch.no_grad()
def evaluated(network: NeuralAMG, samples: list[Sample]) -> float:
    generator = torch.Generator().manual_seed(2)
    return sum(float(sample.loss(network, generator)) for sample in samples) / len(samples)


def train(network: NeuralAMG, samples: list[Sample], held_out: list[Sample], steps: int) -> list[dict]:
    """Leaves the weights that were best on the held-out samples; untrained ones count as well."""
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, RATE / 100)
    generator, order = torch.Generator().manual_seed(1), []
    best, total = copy.deepcopy(network.state_dict()), 0.0
    history: list[dict] = [{"step": 0, "loss": None, "validation": evaluated(network, held_out)}]
    for step in range(1, steps + 1):
        if not order:
            order = torch.randperm(len(samples), generator=generator).tolist()
        loss = samples[order.pop()].loss(network, generator)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        total += float(loss.detach())
        if step % VALIDATED == 0 or step == steps:
            found, since = evaluated(network, held_out), step - history[-1]["step"]
            if found < min(row["validation"] for row in history):
                best = copy.deepcopy(network.state_dict())
            history.append({"step": step, "loss": total / since, "validation": found})
            total = 0.0
    network.load_state_dict(best)
    return history
