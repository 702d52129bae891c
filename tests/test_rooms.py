"""The borders between rooms: imports point down, no cycle hides anywhere, and foreign libraries stay where they belong.

Every import counts: at the top of a file, under ``TYPE_CHECKING``, inside functions, and in the stubs that name what a
package loads on first use.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping, Set
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import rollout_assets

PACKAGE = Path(rollout_assets.__file__).parent

ROOMS = (
    *("errors", "exports", "interruption", "overlap", "parsing", "progress", "files", "workers", "locations", "config"),
    *("randomness", "metrics"),
    *("geometry", "sources", "synthetic", "importing", "targets", "candidates", "observations", "oracle", "rollouts"),
    *("campaigns", "inspection", "learning", "reports", "serving", "collection", "evaluation", "rounds"),
    "cluster",
    *("defs", "definitions"),
    *("testing", "benchmarks", "commands", "cli", "__main__"),
)
"""From the ground floor up: a room imports from rooms before it."""

APART = [("learning", "campaigns"), ("learning", "inspection"), ("reports", "learning"), ("collection", "reports")]
"""Room and a lower room that it must not need all the same."""

SURFACES = {"rollouts": ("campaigns", "inspection")}
"""Package and higher rooms whose names its stub offers to users, although its modules must not import them."""

WALLS = [
    ("rollouts/*.py", ("rollouts.zarr_store", "rollouts.manager", "rollouts.remote")),
    ("rollouts/zarr_store/**/*.py", ("rollouts.manager", "rollouts.remote", "rollouts.engine", "rollouts.evaluation")),
    ("rollouts/zarr_store/chunks/*.py", ("rollouts.zarr_store.schema", "rollouts.zarr_store.reader", "rollouts.trace")),
    ("rollouts/zarr_store/checks/*.py", ("rollouts.zarr_store.validation", "rollouts.zarr_store.writer")),
    ("rollouts/remote/*.py", ("rollouts.manager", "rollouts.engine", "rollouts.zarr_store", "oracle")),
    ("serving/*.py", ("serving.server",)),
    ("metrics/*.py", ("geometry", "rollouts")),
]
"""Files, and the folders inside or below their room that they must not import."""


LIGHT = ("config", "geometry.poses", "geometry.boxes", "sources.vin_store", "cli", "definitions")
"""Modules that load neither Torch nor Warp, the lightest first."""


def name_of(path: Path, root: Path = PACKAGE) -> str:
    """Return the module name below the package: ``rollouts.engine``."""
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


@cache
def sources(root: Path = PACKAGE) -> list[Path]:
    """Return all modules and stubs except those of the package itself, which offers names of every room."""
    found = sorted((*root.rglob("*.py"), *root.rglob("*.pyi")))
    return [path for path in found if path.with_suffix("") != root / "__init__"]


@cache
def imports_of(path: Path) -> set[str]:
    """Return every module that a file imports anywhere in it, and every name that it takes from one."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    return imported


@cache
def own_imports(path: Path) -> set[str]:
    """Return what a file imports of this package, without the package's name."""
    return {name.removeprefix("rollout_assets.") for name in imports_of(path) if name.startswith("rollout_assets.")}


@cache
def import_graph(root: Path) -> dict[str, set[str]]:
    """Map every module, with its stub, to the modules of the package that it imports."""
    graph: dict[str, set[str]] = {name_of(path, root): set() for path in sources(root)}
    for path in sources(root):
        name = name_of(path, root)
        graph[name] |= {module_of(imported, graph.keys()) for imported in own_imports(path)} - {name, ""}
    return graph


def module_of(imported: str, modules: Set[str]) -> str:
    """Return the module that an imported name is or belongs to, or nothing."""
    while imported and imported not in modules:
        imported = imported.rpartition(".")[0]
    return imported


def cycle_in(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the modules of one import cycle, or none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def upward_imports(graph: Mapping[str, set[str]]) -> Iterator[str]:
    """Yield imports of a room from one above it, or from one that it must not need."""
    for module, imported in graph.items():
        room = module.split(".")[0]
        for other in imported:
            other_room = other.split(".")[0]
            if other_room in SURFACES.get(module, ()):
                continue
            if ROOMS.index(other_room) > ROOMS.index(room) or (room, other_room) in APART:
                yield f"{module} imports {other}"


def test_every_module_lives_in_a_room():
    assert {name_of(path).split(".")[0] for path in sources()} == set(ROOMS)


def test_imports_point_down():
    assert list(upward_imports(import_graph(PACKAGE))) == []


def test_there_is_no_cycle():
    assert cycle_in(import_graph(PACKAGE)) == []


@pytest.mark.parametrize(("pattern", "beyond"), WALLS, ids=[pattern for pattern, _ in WALLS])
def test_walls_inside_a_room_hold(pattern, beyond):
    paths = [path for path in PACKAGE.glob(pattern) if path.name != "__init__.py"]
    assert paths
    crossed = [
        f"{name_of(path)} imports {module}"
        for path in paths
        for module in own_imports(path)
        if any(module == name or module.startswith(f"{name}.") for name in beyond)
    ]
    assert crossed == []


def test_only_the_stub_of_a_surface_offers_higher_rooms():
    for package in SURFACES:
        assert upward_imports_of(package, own_imports(PACKAGE / package / "__init__.py")) == []
        assert upward_imports_of(package, own_imports(PACKAGE / package / "__init__.pyi")) != []


def upward_imports_of(room: str, imported: set[str]) -> list[str]:
    rooms = {name.split(".")[0] for name in imported}
    return sorted(other for other in rooms if ROOMS.index(other) > ROOMS.index(room))


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rollout_assets.files import b\n", "a type"),
        ("def late():\n    from rollout_assets.files import b\n", "a function"),
        ("import rollout_assets.files\n", "plain sight"),
    ],
)
@pytest.mark.parametrize("ending", ["py", "pyi"])
def test_these_tests_can_fail(tmp_path, text, hidden, ending):
    (tmp_path / "errors.py").touch()
    (tmp_path / f"errors.{ending}").write_text(text)
    (tmp_path / "files.py").write_text("from rollout_assets.errors import a\n")
    graph = import_graph(tmp_path)
    assert set(cycle_in(graph)) == {"errors", "files"}, hidden
    assert list(upward_imports(graph)) == ["errors imports files"], hidden


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("dagster", ("defs/", "definitions.py")),
        ("zarr", ("sources/", "synthetic/", "rollouts/zarr_store/", "benchmarks/")),
        ("warp", ("geometry/", "oracle/")),
        ("torch", ("geometry/", "oracle/", "learning/", "benchmarks/")),
        ("typer", ("commands/", "cli.py")),
        ("plotly", ("reports/",)),
        ("starlette", ("serving/server/",)),
        ("uvicorn", ("serving/server/",)),
        ("httpx", ("rollouts/remote/client.py",)),
        ("gymnasium", ("learning/environment/",)),
        ("stable_baselines3", ("learning/environment/sb3.py",)),
        ("ray", ("cluster/ray_nodes.py",)),
        ("sqlalchemy", ("cluster/node.py", "testing/postgres.py")),
        ("yaml", ("cluster/settings.py",)),
        ("pickle", ()),
    ],
)
def test_a_library_is_used_only_where_it_belongs(library, allowed):
    users = [
        path.relative_to(PACKAGE).as_posix()
        for path in sources()
        if any(module == library or module.startswith(f"{library}.") for module in imports_of(path))
    ]
    assert [user for user in users if not user.startswith(allowed or ("nowhere",))] == []


@pytest.mark.parametrize(
    "path", ["targets/selection.py", "candidates/mixture.py", "candidates/rules.py", "rollouts/policies.py"]
)
def test_what_decides_for_the_actor_cannot_reach_the_oracle(path):
    assert not any(module.startswith(("oracle", "targets.matching")) for module in own_imports(PACKAGE / path))


def test_light_modules_load_without_torch_and_warp():
    report = "import sys\nfor module in sys.argv[1:]:\n    __import__(f'rollout_assets.{module}')\n"
    report += "    print(module, *sorted({'torch', 'warp'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", report, *LIGHT], capture_output=True, text=True)
    assert done.stdout.splitlines() == list(LIGHT), done.stderr
