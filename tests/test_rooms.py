"""The borders between rooms: imports point down, and heavy or foreign libraries stay where they belong."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rollout_assets

PACKAGE = Path(rollout_assets.__file__).parent
GROUND = {"errors", "config", "progress", "randomness"}
ROOMS = ["geometry", "sources", "targets", "candidates", "oracle", "rollouts"]
UPSTAIRS = ["training", "collection", "reports"]
TOP = ["defs", "commands", "definitions", "cli"]
FLOOR = (
    dict.fromkeys(GROUND, 0)
    | {name: level for level, name in enumerate(ROOMS, start=1)}
    | {name: len(ROOMS) + 1 for name in UPSTAIRS}
    | {name: len(ROOMS) + 2 + level for level, name in enumerate(TOP)}
)


def room_of(module: str) -> str:
    return module.split(".")[1]


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


FILES = [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path):
    own = room_of("rollout_assets." + path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", "."))
    assert own in FLOOR, f"{own} is no room of the design"
    for module in imports_of(path):
        if module.startswith("rollout_assets."):
            other = room_of(module)
            upstairs_neighbour = FLOOR[other] == FLOOR[own] and other != own
            assert FLOOR[other] <= FLOOR[own] and not (upstairs_neighbour and own in UPSTAIRS), (
                f"{own} imports {module}"
            )


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("dagster", ("defs/", "definitions.py")),
        ("zarr", ("sources/", "rollouts/zarr_store/")),
        ("warp", ("geometry/", "oracle/")),
        ("torch", ("geometry/", "oracle/", "training/")),
        ("typer", ("commands/", "cli.py")),
        ("plotly", ("reports/",)),
        ("starlette", ("collection/",)),
        ("uvicorn", ("collection/",)),
        ("httpx", ("collection/", "rollouts/gym_client.py")),
        ("pickle", ()),
    ],
)
def test_a_library_is_used_only_where_it_belongs(library, allowed):
    users = [
        path.relative_to(PACKAGE).as_posix()
        for path in FILES
        if any(module == library or module.startswith(f"{library}.") for module in imports_of(path))
    ]
    assert [user for user in users if not user.startswith(allowed or ("nowhere",))] == []


@pytest.mark.parametrize(
    "path", ["targets/selection.py", "candidates/mixture.py", "candidates/rules.py", "rollouts/policies.py"]
)
def test_what_decides_for_the_actor_cannot_reach_the_oracle(path):
    for module in imports_of(PACKAGE / path):
        assert not module.startswith(("rollout_assets.oracle", "rollout_assets.targets.matching"))


@pytest.mark.parametrize("module", ["definitions", "cli", "config", "geometry.poses", "sources.vin_store"])
def test_light_modules_load_without_torch_and_warp(module):
    code = f"import sys, rollout_assets.{module}; print(sorted({{'torch', 'warp'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
