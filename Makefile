# make train    learn a preconditioner       make test    run all tests
# make help     the other targets
#
# Both set up .venv first, once. VENV=folder puts it elsewhere; VENV= (empty) uses the active environment
# and its torch. All paths are relative: the folder may have a space in its name.
VENV := .venv
PYTHON ?= python3
OUT := runs/stencil
ARGS :=
ONLY :=

python = "$(if $(VENV),$(VENV)/bin/python,$(PYTHON))"
bin = $(if $(VENV),$(VENV)/bin/)
jobs = $$(env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 2)

.PHONY: train test test-petsc stress bench docs docs-packages gpu experiments lint sanitize sanitize-python wheels compat setup clean help

train: setup ## learn a preconditioner, measure it against others, draw (OUT=folder, ARGS="--steps 800 ...")
	@$(python) -m learnsolve.train stencil --out "$(OUT)" --overwrite true $(ARGS)

# A process for each core, a file of tests in one of them, so that what its tests share is made once, in the
# order of tests/conftest.py. Threads of OpenMP or OpenBLAS beside them would mostly wait for one another.
test: export OMP_NUM_THREADS ?= 1
test: export OPENBLAS_NUM_THREADS ?= 1
test: setup ## run all tests (ARGS="-k spmm" chooses; ARGS="-n 0 --pdb" runs them in one process)
	@$(python) -m pytest --numprocesses $(jobs) --dist loadfile --no-loadscope-reorder $(ARGS)

test-petsc: setup ## run the tests of learnsolve.petsc in 1, 2, 3, 4 processes (Debian: installs petsc4py, 42 MB)
	@VENV="$(VENV)" scripts/petsc.sh test $(ARGS)

stress: setup ## harnesses that look for faults, 40 min: docs/robustness.md (ARGS="arrays --share 0.1": a tenth of one)
	@$(python) -m tests.stress $(ARGS)

bench: setup ## measure against SciPy, torch and others: benchmarks/results, 25 min (ARGS=--quick: 1 min)
	@$(python) -m benchmarks $(ARGS)

docs-packages: setup
	@$(python) -m pip install -q $$($(python) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')

docs: docs-packages ## build the documentation site: build/site/index.html (its packages come first)
	@$(python) -m sphinx -W --keep-going -q -b html docs build/site
	@echo "build/site/index.html"

gpu: ## on a machine with a CUDA device: build, test, sanitize, measure there (PYTHON=its python3 with torch)
	@"$(PYTHON)" scripts/gpu.py $(ARGS)

# One thread for NumPy's eigenvalues: on matrices of this size two mostly wait for one another.
experiments: export OPENBLAS_NUM_THREADS ?= 1
experiments: setup ## reproduce figures and threads (ONLY="name ..." chooses, ARGS=--quick)
	@for run in $(if $(ONLY),$(ONLY:%=experiments/%/run.py),experiments/*/run.py); do \
	  echo "== $$run"; $(python) "$$run" $(ARGS) || exit 1; \
	done

lint: setup ## ruff, pyright, clang-format, phrases (scripts/english.py)
	@$(python) -m ruff check .
	@$(python) -m ruff format --check .
	@$(python) -m pyright --pythonpath $(python)
	@$(python) scripts/english.py
	@find csrc -name '*.h' -o -name '*.cpp' -o -name '*.cuh' -o -name '*.cu' | \
	  xargs "$(bin)clang-format" --dry-run -Werror

sanitize: setup ## kernels under AddressSanitizer and UBSan, on several threads under ThreadSanitizer
	@"$(bin)cmake" -S . -B build/native -DLEARNSOLVE_NATIVE_TESTS=ON
	@"$(bin)cmake" --build build/native --parallel $(jobs)
	@"$(bin)ctest" --test-dir build/native --output-on-failure --parallel $(jobs)
	@$(python) scripts/sanitize.py kernels

sanitize-python: setup ## all Python tests on libraries under AddressSanitizer and UBSan (ARGS=thread: ThreadSanitizer)
	@$(python) scripts/sanitize.py $(ARGS)

wheels: setup ## dist/*.whl for each Python that is here, tested in clean environments (LEARNSOLVE_CUDA=1: with CUDA)
	@$(python) scripts/wheels.py build $(ARGS)

compat: setup ## the wheel with the oldest and the newest torch: docs/compatibility.md
	@$(python) scripts/wheels.py compat $(ARGS)

setup: ## virtual environment, pinned dependencies, compiled extension
	@PYTHON="$(PYTHON)" sh scripts/setup.sh "$(VENV)"

clean: ## remove what was built and installed; results stay
	rm -rf .venv build .pytest_cache .ruff_cache

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1\t/p' Makefile
