"""An argument of a public call that requires grad gets the gradient of differences, or an error names it.

Every call that `__all__` names, with each of its arguments in turn made of a leaf and of a result, in random
directions.

A fault is a call that accepts the argument with a gradient (zero, if there is none) that differs from central
differences by more than 1e-6 of the product of the lengths, or an error that does not name the argument.
"""

import time
from collections import Counter

from carriers import CASES, fault

from ._report import Report

SHORT = 50


def run(count: int, seed: int) -> Report:
    start, faults, counts, cases = time.perf_counter(), [], Counter(), list(CASES.values())
    for i in range(count):
        case, number = cases[i % len(cases)], seed + 2 * (i // len(cases))
        counts["arguments"] += 1
        if found := fault(case, number):
            faults.append(f"{found}, seed {number}")
    return Report("graphs", dict(counts), faults, time.perf_counter() - start)
