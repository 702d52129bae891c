"""Shared by all tests: reproducible hypothesis runs that leave no files, and one small source store per session."""

import shutil
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("repository", database=None, derandomize=True, deadline=None)
settings.load_profile("repository")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A run without a browser says so at its end, because a skipped test is easily overlooked."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        terminalreporter.section("not tested")
        terminalreporter.line("no browser: install chromium and chromium-driver, then tests/defs/test_ui.py runs too")


@pytest.fixture(scope="session")
def small_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two scenes with two snippets each. Shared: copy before changing."""
    from rollout_assets.synthetic.config import SyntheticConfig
    from rollout_assets.synthetic.store import build_synthetic_store

    config = SyntheticConfig(
        scenes=2, snippets_per_scene=2, faces=30_000, seed=11, min_points=500, max_points=2_000, workers=1
    )
    path = tmp_path_factory.mktemp("source") / "store"
    build_synthetic_store(path, config)
    return path


@pytest.fixture
def store_copy(small_store: Path, tmp_path: Path) -> Path:
    """A copy that a test may change; mesh files are links to the original's."""
    copy = tmp_path / "copy"
    shutil.copytree(small_store, copy, ignore=shutil.ignore_patterns("meshes"))
    (copy / "meshes").mkdir()
    for mesh in (small_store / "meshes").iterdir():
        (copy / "meshes" / mesh.name).symlink_to(mesh)
    return copy
