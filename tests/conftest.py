"""Shared by all tests: reproducible hypothesis runs that leave no files, and one small source store per session."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from rollout_assets.testing.object_storage import LocalObjectStorage, environment_of, local_object_storage
from tests.support.built_once import built_once

settings.register_profile("repository", database=None, derandomize=True, deadline=None)
settings.load_profile("repository")

QUICK = (
    *(
        "test_config.py",
        "test_files.py",
        "test_randomness.py",
        "front/test_docs.py",
        "candidates",
        "geometry",
        "metrics",
    ),
    *("targets", "oracle/test_fusion.py", "oracle/test_raycast.py", "oracle/test_scene.py", "oracle/test_scorer.py"),
    *("oracle/test_surface_error.py", "sources/test_meshes.py", "sources/test_layout.py", "synthetic/test_snippets.py"),
    *("rollouts/test_engine.py", "rollouts/test_policies.py", "rollouts/remote", "campaigns/test_plan.py"),
    *("rollouts/zarr_store/test_store_schema.py", "rollouts/zarr_store/test_store_round_trip.py"),
    *("rollouts/zarr_store/test_store_row_chunks.py", "rollouts/zarr_store/test_store_training_view.py"),
    *("inspection/test_tables.py", "inspection/test_suspicious.py", "inspection/test_explain.py"),
    *("collection/test_inputs.py", "collection/test_aggregation.py", "serving/test_request_log.py"),
)
"""Files and folders of tests that are marked quick: every room, and nothing that starts campaigns or processes."""

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        path = item.path.relative_to(here)
        if any(path.is_relative_to(quick) for quick in QUICK) and item.get_closest_marker("slow") is None:
            item.add_marker("quick")


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
