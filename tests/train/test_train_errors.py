"""Bad input to the training program: one sentence that names the option and the remedy, and exit code 2."""

import subprocess
import sys

import pytest
import torch

from learnsolve import recipes, train

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU")
ASYMMETRIC = "%%MatrixMarket matrix coordinate real general\n2 2 3\n1 1 1\n2 1 3\n2 2 1\n"
NEGATIVE = "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n2 2 -1\n"
RECTANGULAR = "%%MatrixMarket matrix coordinate real general\n2 3 2\n1 1 1\n2 2 -1\n"


def matrix(path):
    return ["--problem.name", "matrix_market", "--problem.path", path]


BAD = {
    "jacobi": [
        (["--stepz", "3"], "unknown option --stepz; did you mean --steps?"),
        (["--nothing_like_it", "3"], "unknown option --nothing_like_it"),
        (["--problem.shap", "3"], "did you mean --problem.shape?"),
        (["stray"], "'stray' is not an option"),
        (["--steps"], "--steps needs a value"),
        (["--steps", "1.5"], "--steps must be a whole number, got '1.5'"),
        (["--steps", "-1"], "--steps must be at least 0, got -1"),
        (["--lr", "fast"], "--lr must be a number, got 'fast'"),
        (["--lr", "0"], "--lr must be a positive number, got 0.0"),
        (["--lr", "nan"], "--lr must be a number, got 'nan'"),
        (["--dtype", "float16"], "--dtype must be float32 or float64, got 'float16'"),
        (["--device", "tpu"], "--device must be cpu, cuda or cuda:N, got 'tpu'"),
        (["--device", "cuda"], "--device cuda needs a GPU"),
        (["--threads", "0"], "--threads must be at least 1"),
        (["--seed", "-1"], "--seed must be at least 0"),
        (["--evaluate_every", "0"], "--evaluate_every must be at least 1"),
        (["--checkpoint_seconds", "-1"], "--checkpoint_seconds must not be negative"),
        (["--out", ""], "--out must name a folder"),
        (["--out", "file"], "--out file cannot be used as a folder"),
        (["--out", "full"], "--out full holds other files"),
        (["--quiet", "perhaps"], "--quiet must be true or false, got 'perhaps'"),
        (["--config", "none.yaml"], "none.yaml"),
        (["--config", "bad.yaml"], "unknown option --stepz; did you mean --steps?"),
        (["--resume", "nowhere"], "--resume nowhere: there is no run"),
        (["--test_vectors", "many"], "--test_vectors must be a whole number or identity, got 'many'"),
        (["--test_vectors", "0"], "--test_vectors must be at least 1"),
        (["--test_vectors", "identity", "--resample"], "--resample true needs random vectors"),
        (
            ["--test_vectors", "identity", "--problem.shape", "[65,64]"],
            "n <= 4096, but the matrix has n = 4160",
        ),
        (["--test_vectors", "100000000", "--problem.shape", "100000"], "GiB are free; use fewer"),
        (["--sweeps", "0"], "--sweeps must be at least 1"),
        (["--hard_fraction", "0"], "--hard_fraction must be above 0 and at most 1, got 0.0"),
        (["--hard_fraction", "1.5"], "--hard_fraction must be above 0 and at most 1, got 1.5"),
        (["--hard_fraction", "nan"], "--hard_fraction must be"),
        (["--hard_fraction", "half"], "--hard_fraction must be a number, got 'half'"),
        (["--hard_fraction", "0.5", "--hard_pass", "three"], "--hard_pass must be two or one, got 'three'"),
        (["--hard_pass", "one"], "--hard_pass one needs a --hard_fraction below 1"),
        (["--held_out", "0"], "--held_out must be at least 1"),
        (["--problem.name", "navier"], "--problem.name must be poisson, anisotropic"),
        (["--problem.shape", "16,16"], "--problem.shape must be a whole number or a list such as [64,64]"),
        (["--problem.shape", "0"], "--problem: poisson: shape must have"),
        (["--problem.shape", "[2,2,2,2]"], "--problem: poisson: shape must have"),
        (["--problem.epsilon", "0.5"], "--problem.epsilon means nothing for --problem.name poisson"),
        (["--problem.name", "matrix_market"], "needs --problem.path"),
        (["--problem.name", "gallery", "--problem.matrix", "nil"], "--problem: gallery: name must be one of"),
        (
            ["--problem.name", "diffusion", "--problem.shape", "[3,3]", "--problem.contrast", "0.5"],
            "contrast",
        ),
        (matrix("none.mtx"), "none.mtx"),
        (matrix("asymmetric.mtx"), "needs a symmetric matrix, but A - A^T has an entry 3"),
        (matrix("negative.mtx"), "diagonal entry of row 1 is -1"),
        (matrix("rectangular.mtx"), "square"),
    ],
    "heavyball": [
        (["--sweeps", "0"], "--sweeps must be at least 1"),
        (["--alpha", "nan"], "--alpha must be a number"),
        (["--test_vectors", "identity", "--resample"], "--resample true needs random vectors"),
        (["--test_vectors", "identity", "--problem.shape", "[65,64]"], "n <= 4096"),
        (["--test_vectors", "100000000", "--problem.shape", "100000"], "GiB are free; use fewer"),
        (["--hidden", "3"], "--hidden is not an option of heavyball; see the recipe heavyball_network"),
        (
            ["--variant", "network"],
            "--variant is not an option of heavyball; see the recipe heavyball_network",
        ),
    ],
    "heavyball_network": [
        (["--alpha", "0.3"], "--alpha is not an option of heavyball_network; see the recipe heavyball"),
        (
            ["--problem.shape", "9"],
            "--problem.shape is not an option of heavyball_network; see the recipe heav",
        ),
        (["--variant", "scalars"], "see the recipe heavyball"),
        (["--grid", "[16]"], "--grid must have two or three axes"),
        (["--grid", "[4,4,4]"], "--family anisotropic has two axes"),
        (["--layers", "0"], "--layers must be at least 1"),
    ],
    "pcg": [
        (["--iterations", "0"], "--iterations must be at least 1"),
        (["--gamma", "0"], "--gamma must be a positive number"),
        (["--clip", "-1"], "--clip must be a positive number"),
        (["--target", "inf"], "--target must be a"),
        (["--weight_decay", "-1"], "--weight_decay must not be negative"),
        (["--curriculum", "0"], "--curriculum must be at least 1"),
        (["--patience", "0"], "--patience must be at least 1"),
        (["--test_vectors", "0"], "--test_vectors must be at least 1"),
        (["--test_vectors", "ramp", "--resample"], "--resample true needs random vectors"),
        (["--evaluated", "0"], "--evaluated must be at least 1"),
        (["--guard", "0.5"], "--guard must be between 0 and 0.01"),
        (["--guard", "0.01", "--form", "triangular", "--start", "ic0", "--problem.shape", "200"], "--guard"),
        (["--start", "ic0"], "--start ic0 is a factor for --form triangular, not for product; take"),
        (["--start", "fsai", "--form", "triangular"], "take --start paper or ic0"),
        (["--nx", "8"], "--nx and --ny are given together"),
        (["--nx", "8", "--ny", "0"], "--ny must be at least 1"),
        (["--tolerances", "[2.0]"], "--tolerances must be numbers between 0 and 1"),
        (["--schedule", "steps"], "--schedule must be none or cosine"),
        (["--pattern", "full"], "--pattern must be bidiagonal, tril or two_ring"),
        (["--problem.epsilon", "0.5"], "--problem.epsilon means nothing for --problem.name poisson"),
        (["--test_vectors", "100000000", "--problem.shape", "[1000,1000]"], "GiB are free; use fewer"),
    ],
}
CASES = [
    pytest.param(name, *case, marks=[NO_GPU] if "cuda" in case[0] else [])
    for name, cases in BAD.items()
    for case in cases
]


@pytest.mark.parametrize(("recipe", "options", "words"), CASES)
def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path, monkeypatch, capsys, recipe, options, words):
    monkeypatch.chdir(tmp_path)
    for name, text in (("asymmetric", ASYMMETRIC), ("negative", NEGATIVE), ("rectangular", RECTANGULAR)):
        (tmp_path / f"{name}.mtx").write_text(text)
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    (tmp_path / "bad.yaml").write_text("stepz: 3\n")
    assert train.main([recipe, *options]) == train.BAD_SETTING
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("learnsolve.train: ")
    assert printed.err.count("\n") == 1
    assert words in printed.err
    assert not (tmp_path / "runs").exists()


def test_an_unknown_recipe(capsys):
    assert train.main(["jacoby"]) == train.BAD_SETTING
    known = ", ".join(recipes.RECIPES)
    assert capsys.readouterr().err == f"learnsolve.train: unknown recipe 'jacoby'; the recipes are: {known}\n"


def test_a_run_is_replaced_only_with_overwrite(run, rows, no_pictures, capsys):
    _, folder = run("--steps", 5)
    first = rows(folder)
    assert run("--steps", 3)[0] == train.BAD_SETTING
    assert "--resume run, replace it with --overwrite true" in capsys.readouterr().err
    assert rows(folder) == first
    assert run("--steps", 3, "--overwrite")[0] == train.OK
    assert rows(folder)[:3] == first[:3]
    assert len(rows(folder)) == 4


def test_a_missing_package_is_named_with_its_extra(run, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    code, folder = run()
    assert code == train.FAILED
    assert "learnsolve.train needs tqdm" in (message := capsys.readouterr().err)
    assert "pip install 'learnsolve[train]'" in message
    assert not folder.exists()


def test_extras_are_imported_only_by_a_run():
    code = (
        "import sys, learnsolve.train; from learnsolve.recipes import jacobi;"
        "print({'jsonargparse', 'matplotlib', 'pyamg', 'safetensors', 'yaml'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
