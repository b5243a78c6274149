"""The progress of a run: a bar on a terminal, plain lines elsewhere, or nothing."""

import sys
import time

from learnsolve.recipes.harness.extras import need

FIRST_LINE, LAST_INTERVAL = 2.0, 60.0  # seconds
BAR_INTERVAL = 0.1


class Progress:
    """Call `update` at every step: it returns at once unless something is due."""

    def __init__(self, first: int, steps: int, quiet: bool):
        self._steps, self._first = steps, first
        self._bar = None
        self._interval = FIRST_LINE
        self._start = time.perf_counter()
        self.due = float("inf")
        if quiet:
            return
        if sys.stderr.isatty():
            tqdm = need("tqdm").tqdm
            self._bar = tqdm(total=steps, initial=first, unit="step", dynamic_ncols=True, file=sys.stderr)
            self._interval = BAR_INTERVAL
        self.due = self._start + self._interval

    def update(self, step: int, loss: float, now: float) -> None:
        """`step` steps are done. Call it when `now` (time.perf_counter) has reached `due`."""
        if self._bar is not None:
            self._bar.update(step - self._bar.n)
            self._bar.set_postfix_str(f"loss {loss:.6g}")
        else:
            rate = (now - self._start) / max(step - self._first, 1)
            left = rate * (self._steps - step)
            text = f"step {step} of {self._steps}, loss {loss:.6g}, {left:.0f} s left"
            print(text, file=sys.stderr, flush=True)
            # The interval doubles, so that a log of a day stays short.
            self._interval = min(self._interval * 2, LAST_INTERVAL)
        self.due = now + self._interval

    def close(self, step: int, loss: float | None) -> None:
        """Show the last state, due or not."""
        if self._bar is not None:
            self._bar.update(step - self._bar.n)
            if loss is not None:
                self._bar.set_postfix_str(f"loss {loss:.6g}")
            self._bar.close()
        elif self.due != float("inf") and loss is not None:
            print(f"step {step} of {self._steps}, loss {loss:.6g}", file=sys.stderr, flush=True)
