"""Shared by all tests: reproducible hypothesis runs that leave no files, and one small source store per session."""

import gc
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from rollout_assets.testing.object_storage import LocalObjectStorage, environment_of, local_object_storage
from tests.support.built_once import built_once

settings.register_profile("repository", database=None, derandomize=True, deadline=None)
settings.load_profile("repository")

SMALL_STORE = {
    "scenes": 2,
    "snippets_per_scene": 2,
    "faces": 30_000,
    "seed": 11,
    "min_points": 500,
    "max_points": 2_000,
    "workers": 1,
}
"""How ``small_store`` is drawn."""


OTHER_RUNS = ("ci", "slow", "cluster", "gpu")
"""Marks of tests that the default run and ``-m quick`` leave out."""


def pytest_configure(config: pytest.Config) -> None:
    """Let ``-m quick`` mean the quick tests of the default run, and Ctrl-C reach the programs that tests start.

    A run in the background of a script ignores Ctrl-C, and so would every process below it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.markexpr == "quick":
        config.option.markexpr = " and not ".join(("quick", *OTHER_RUNS))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import the other test modules for ``-m quick``, which takes longer than its tests."""
    quick_only = config.option.markexpr.startswith("quick and not")
    is_other = collection_path.name.startswith("test_") and "mark.quick" not in collection_path.read_text()
    return True if quick_only and is_other else None


def pytest_collection_finish() -> None:
    """Exempt what the imports made from garbage collection, which would go through all of it again and again."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A run without a browser says so at its end, because a skipped test is easily overlooked."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        terminalreporter.section("not tested")
        terminalreporter.line("no browser: install chromium and chromium-driver, then tests/defs/test_ui.py runs too")


@pytest.fixture(scope="session")
def object_storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalObjectStorage]:
    """Object storage on this machine, which this process finds by its environment; give each test a URL of its own."""
    folder = tmp_path_factory.mktemp("objects")
    with local_object_storage(folder) as storage, environment_of(storage, folder / "cache"):
        yield storage


@pytest.fixture(scope="session")
def small_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two scenes with two snippets each. Shared: copy before changing."""
    return built_once(tmp_path_factory, "small_store", lambda path: _build_store(path, **SMALL_STORE))


@pytest.fixture(scope="session")
def four_homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three scenes to train on and one to evaluate on, a snippet each. Shared: copy before changing."""
    settings = SMALL_STORE | {"scenes": 4, "snippets_per_scene": 1}
    return built_once(tmp_path_factory, "four_homes", lambda path: _build_store(path, **settings))


def _build_store(path: Path, **settings: Any) -> None:
    from rollout_assets.synthetic.config import SyntheticConfig
    from rollout_assets.synthetic.store import build_synthetic_store

    build_synthetic_store(path, SyntheticConfig(**settings))


@pytest.fixture
def store_copy(small_store: Path, tmp_path: Path) -> Path:
    """A copy that a test may change; mesh files are links to the original's."""
    copy = tmp_path / "copy"
    shutil.copytree(small_store, copy, ignore=shutil.ignore_patterns("meshes"))
    (copy / "meshes").mkdir()
    for mesh in (small_store / "meshes").iterdir():
        (copy / "meshes" / mesh.name).symlink_to(mesh)
    return copy
