"""The wheel with its base packages is enough to read stores and train: no Dagster, no Warp, no server."""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import venv
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from rollout_assets import __version__
from rollout_assets.config import SelectedDepthRetentionConfig
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreConfig, write_rollout_zarr_store
from rollout_assets.testing.fake_records import SyntheticRecords
from tests.support.refusals import assert_names
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.ci  # builds the wheel and installs it

ROOT = Path(__file__).parents[2]
OPTIONAL = ("dagster", "warp", "starlette", "uvicorn", "httpx", "trimesh", "plotly", "matplotlib")

INSPECTIONS = ("store info", "store validate", "inspect waterfall", "inspect ready")
NEEDS_EXTRA = {
    "rollout 0 -c CAMPAIGN": "platform",
    "inspect replay STORE 0 -c demo": "platform",
    "report STORE -o page.html": "reports",
    "serve": "serve",
    "ui": "platform",
}
"""Command -> the extra that it needs."""

TRAIN = """
import contextlib, importlib.util, io, json, sys
from rollout_assets import QHIterableDataset, QHLoader, RolloutZarrStoreReader, validate_rollout_zarr_store
store = sys.argv[1]
optional = json.loads(sys.argv[2])
states = sum(len(batch) for batch in QHLoader(QHIterableDataset(store, batch_size=8)))
facts = {
    "home": sys.modules["rollout_assets"].__file__,
    "rows": RolloutZarrStoreReader(store).table("candidates").height,
    "valid": validate_rollout_zarr_store(store, deep=True).ok,
    "states": states,
    "imported": [name for name in optional if name in sys.modules],
    "importable": [name for name in optional if importlib.util.find_spec(name)],
    "commands": [],
}
from rollout_assets.cli import main
for command in json.loads(sys.argv[3]):
    sys.argv = ["rollout-assets", *command]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            facts["commands"].append([ended.code, out.getvalue(), err.getvalue()])
print(json.dumps(facts))
"""
"""Train, then run commands, all in one process, and print what happened."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree; built with the installed hatchling if there is one, else pip fetches it."""
    folder = tmp_path_factory.mktemp("wheel")
    here = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *here, "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, timeout=PATIENCE_S)
    (built,) = folder.glob("*.whl")
    return built


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return HeaderParser().parsestr(archive.read(name).decode())


def with_dependencies(requirements: list[str]) -> dict[str, importlib.metadata.Distribution]:
    """The distributions of this environment that some requirements need, extras left out."""
    needed: dict[str, importlib.metadata.Distribution] = {}
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        if requirement.name in needed or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        needed[requirement.name] = importlib.metadata.distribution(requirement.name)
        waiting += [Requirement(text) for text in needed[requirement.name].requires or ()]
    return needed


def expose(distributions: dict[str, importlib.metadata.Distribution], folder: Path) -> None:
    """Links to the top-level files and folders of some distributions."""
    folder.mkdir()
    for distribution in distributions.values():
        for top in {Path(file).parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            link = folder / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean virtual environment with the wheel and its base packages, and nothing else of this environment."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    install = ["--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, timeout=PATIENCE_S)
    expose(with_dependencies(metadata_of(wheel).get_all("Requires-Dist", [])), folder / "base")
    (site_packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site_packages / "base.pth").write_text(f"{folder / 'base'}\n")
    return folder / "venv"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stores") / "rollouts.zarr"
    config = RolloutZarrStoreConfig(selected_depth=SelectedDepthRetentionConfig(enabled=False))
    write_rollout_zarr_store(path, SyntheticRecords(sources=2, targets=2, horizon=2, shell=(3, 9), seed=2), config)
    return path


def run(environment: Path, *command: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    program = [str(environment / "bin" / command[0]), *command[1:]]
    return subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S, env=clean, cwd=environment)


def test_the_wheel_holds_stubs_campaigns_and_the_version(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    package = ROOT / "rollout_assets"
    data = [path for pattern in ("*.pyi", "*.toml", "py.typed") for path in package.rglob(pattern)]
    assert {str(path.relative_to(ROOT)) for path in data} <= names and len(data) >= 5
    assert not [name for name in names if name.startswith("tests/")]
    assert metadata_of(wheel)["Version"] == __version__
    assert set(metadata_of(wheel).get_all("Provides-Extra")) == {
        "cluster",
        "gym",
        "kubernetes",
        "platform",
        "serve",
        "reports",
        "second-opinion",
        "simplify",
        "dev",
    }


@pytest.fixture(scope="module")
def facts(environment: Path, store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What training and all commands did in the clean environment, in one process."""
    tmp_path = tmp_path_factory.mktemp("campaign")
    lines = [*(f"{command} STORE --json" for command in INSPECTIONS), *NEEDS_EXTRA]
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "manifest.json").write_text("{}")
    (tmp_path / "c.toml").write_text("name = 'c'\nsource.store_dir = 'source'\n")
    places = {"STORE": str(store), "CAMPAIGN": str(tmp_path / "c.toml")}
    commands = [[places.get(word, word) for word in line.split()] for line in lines]
    done = run(environment, "python", "-c", TRAIN, str(store), json.dumps(OPTIONAL), json.dumps(commands))
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    return facts | {"commands": dict(zip([*INSPECTIONS, *NEEDS_EXTRA], facts["commands"], strict=True))}


def test_training_needs_only_the_base_packages(environment, facts):
    assert Path(facts["home"]).is_relative_to(environment)
    assert facts["valid"] and facts["rows"] > facts["states"] > 0
    assert facts["imported"] == [] and facts["importable"] == []


@pytest.mark.parametrize("command", INSPECTIONS)
def test_inspection_needs_only_the_base_packages(facts, command):
    code, out, err = facts["commands"][command]
    assert code in (0, 2) and json.loads(out), err


@pytest.mark.parametrize("command", NEEDS_EXTRA)
def test_a_command_that_needs_more_names_the_extra(facts, command):
    code, _, err = facts["commands"][command]
    assert code == 2 and err.count("\n") == 1
    assert_names(err, f"pip install 'rollout-assets[{NEEDS_EXTRA[command]}]'")


def test_the_console_script_is_installed(environment):
    done = run(environment, "rollout-assets", "serve")
    assert done.returncode == 2
    assert_names(done.stderr, "rollout-assets[serve]")
