"""
The command line: train, stop, resume
=====================================

Every recipe of ``python -m learnsolve.train`` writes a self-contained folder, from which it can be resumed.
"""

import csv
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from learnsolve import train

folder = Path(tempfile.mkdtemp()) / "run"
# In a shell: python -m learnsolve.train jacobi --steps 100 --out run
train.main(["jacobi", "--steps", "100", "--out", str(folder), "--quiet"])

# %%
# The files:
print(*sorted(path.name for path in folder.iterdir()), sep="\n")
# config.yaml
# loss.png
# metrics.csv
# model.safetensors
# report.html
# report.json
# state.safetensors
# weights.png

# %%
# 200 more steps, with the same results as without the interruption:
# ``python -m learnsolve.train jacobi --resume run --steps 300``. Ctrl-C leaves a checkpoint to resume from,
# and ``torchrun --nproc-per-node 4 -m learnsolve.train jacobi`` shares the vectors among processes.
train.main(["jacobi", "--resume", str(folder), "--steps", "300", "--quiet"])
with (folder / "metrics.csv").open() as file:
    rows = list(csv.DictReader(file))
print(len(rows), rows[-1]["loss"])
# 301 2.881943904741717

# %%
# ``report.html`` has the table, the pictures and the settings on one page. The loss, from ``metrics.csv``:
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.semilogy([float(row["loss"]) for row in rows])
axes.set(xlabel="step", ylabel="training loss")
plt.show()
