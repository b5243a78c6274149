"""A small graph in Planetoid's files, and a cache of its own for each test."""

import planetoid_files as files
import pytest


@pytest.fixture
def folder(tmp_path):
    return files.write(tmp_path / "raw")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LEARNSOLVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
