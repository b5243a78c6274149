"""Two that pick one of the classical contestants for each solve, replayed from their measured seconds.

learned choice: ridge regression of log seconds on features of the matrix, for each contestant, from matrices
    of half and a quarter of the side, and those of the tuning; picks the smallest prediction. Its cost is
    that of the features.
bandit: knows nothing at first and sees only the seconds of what it has picked (Tsallis-INF, Zimmert and
    Seldin, JMLR 2021, as PCGBandit has it, arXiv 2509.08765), over solves drawn from the held-out matrices.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Seconds = dict[str, list[float]]  # of each contestant, a number per held-out matrix


def learned_choice(rows: dict[str, Any], totals: Seconds) -> dict[str, Any]:
    """Seconds on each held-out matrix, and the seconds of its training data."""
    count = len(next(iter(totals.values())))
    X = np.array([rows[f"features|{i}"]["features"] for i in range(count)])
    cost = np.array([rows[f"features|{i}"]["seconds"] for i in range(count)])
    predicted, spent = {}, 0.0
    for who in totals:
        data = [row for key, row in rows.items() if key.startswith(f"small|{who}|") and "total" in row]
        spent += sum(row["total"] for row in data)
        for i, row in enumerate(rows[f"tune|{who}"]["rows"]):
            known = rows[f"features|{-1 - i}"]["features"]
            data.append({"total": row["cpu"], "features": known})
        if len(data) >= 4:
            F, y = np.array([r["features"] for r in data]), np.log([r["total"] for r in data])
            predicted[who] = ridge(F, y, X)
    names = list(predicted)
    picks = [names[k] for k in np.argmin([predicted[who] for who in names], axis=0)]
    seconds = [totals[who][i] + cost[i] for i, who in enumerate(picks)]
    return {"totals": seconds, "picks": {who: picks.count(who) for who in picks}, "training s": spent}


def ridge(F: np.ndarray, y: np.ndarray, X: np.ndarray, penalty: float = 1e-2) -> np.ndarray:
    """Predictions at X; the first feature, log n, is not penalized: it extrapolates."""
    middle, scale = F.mean(0), F.std(0) + 1e-12
    G, Z = (F - middle) / scale, (X - middle) / scale
    weights = penalty * len(y) * np.eye(F.shape[1])
    weights[0, 0] = 1e-9
    w = np.linalg.solve(G.T @ G + weights, G.T @ (y - y.mean()))
    return y.mean() + Z @ w


def bandit(totals: Seconds, solves: int = 100, repeats: int = 20) -> dict[str, Any]:
    """Mean seconds of a solve over the sequence; those of the best fixed pick, and of the best for each."""
    T = np.array(list(totals.values()))  # (contestants, matrices)
    means, fixed, last = [], [], []
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        which = rng.integers(T.shape[1], size=solves)
        seconds, estimates = np.empty(solves), np.zeros(len(T))
        for t, i in enumerate(which):
            q = tsallis(estimates, 2.0 / np.sqrt(t + 1))
            arm = rng.choice(len(T), p=q)
            seconds[t] = T[arm, i]
            # Costs from 0 to 1, as the method has them: in units of the largest that it has seen.
            estimates[arm] += seconds[t] / seconds[: t + 1].max() / q[arm]
        means.append(seconds.mean())
        fixed.append(T[:, which].mean(1).min())
        last.append(seconds[-solves // 4 :].mean())
    best = float(np.mean(fixed))
    return {
        "solves": solves,
        "all / best fixed": float(np.mean(means)) / best,
        "last quarter / best fixed": float(np.mean(last)) / best,
        "best of each / best fixed": float(T.min(0).mean() / T.mean(1).min()),
    }


def tsallis(estimates: np.ndarray, rate: float) -> np.ndarray:
    """q_k = 4 (rate (L_k - x))^-2 with sum 1, by Newton's method for x."""
    x = estimates.min() - 2 / rate
    for _ in range(50):
        q = 4 / (rate * (estimates - x)) ** 2
        if abs(excess := q.sum() - 1) < 1e-9:
            break
        x -= excess / (rate * (q**1.5).sum())
    return q / q.sum()
