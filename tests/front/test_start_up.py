"""The front door opens fast: help, refusals and imports load no package that computes.

``python -m tests.support.start_up_times`` prints how long each verb takes.
"""

import inspect
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from rollout_assets import cli
from rollout_assets.commands import store as store_command
from rollout_assets.config import SuspiciousKind
from rollout_assets.errors import RolloutAssetsError
from tests.support.commands import call
from tests.support.waiting import PATIENCE_S

ROOT = Path(cli.__file__).parents[1]
HEAVY = ("torch", "warp", "dagster", "zarr", "polars", "plotly", "matplotlib", "trimesh", "starlette", "pydantic")
MODULES = "import sys, json; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
MAIN = "from rollout_assets.cli import main\n"


def modules_after(code: str, *arguments: str) -> list[str]:
    """Names of all modules that a fresh interpreter has loaded after some code, whether or not the code exits."""
    program = f"try:\n    exec({code!r})\nfinally:\n    {MODULES}"
    run = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=PATIENCE_S
    )
    return json.loads(run.stderr.strip().splitlines()[-1])


def test_help_imports_no_command_and_no_heavy_package():
    loaded = modules_after(MAIN + "main()", "--help")
    assert "rollout_assets.cli" in loaded
    assert [name for name in loaded if name.startswith("rollout_assets.commands.")] == []
    assert [name for name in HEAVY if name in loaded] == []


def test_a_verb_imports_its_own_module_only():
    loaded = modules_after(MAIN + "main()", "config", "--help")
    assert "rollout_assets.commands.config" in loaded
    assert "rollout_assets.commands.inspect" not in loaded and "rollout_assets.commands.demo" not in loaded


ANSWERS = """
import json, sys
from tests.support.commands import call
from tests.support.start_up_times import COMPUTING, NOTHING_BUILT, cases

def answers(arguments):
    seen = set(sys.modules)
    code = call(*arguments).code
    return " ".join(arguments), code, [name for name in COMPUTING if name in sys.modules and name not in seen]

commands = list(cases())
helped = [answers(case.help) for case in commands]
misspelt = [answers(case.misspelt) for case in commands]
refused = [answers(case.refused) for case in commands]
refused += [answers(command.split()) for command in NOTHING_BUILT]
print(json.dumps([helped, misspelt, refused]))
"""
"""Ask all verbs in turn: the arguments, the exit code, and which packages were imported on the way."""


def test_help_and_refusals_import_nothing_that_computes(tmp_path):
    environment = os.environ | {"DAGSTER_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", ANSWERS]
    asked = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, timeout=PATIENCE_S)
    helped, misspelt, refused = json.loads(asked.stdout)
    assert len(helped) == len(misspelt) > len(cli.VERBS)
    assert len(refused) > len(helped)
    assert [answer for answer in helped if answer[1] != 0 or answer[2]] == []
    assert [answer for answer in misspelt if answer[1] != cli.USER_ERROR or answer[2]] == []
    assert [answer for answer in refused if answer[1] != cli.USER_ERROR or set(answer[2]) - {"numpy"}] == []


def opened_store(missing: Path) -> None:
    from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader

    RolloutZarrStoreReader(missing)


def opened_source(missing: Path) -> None:
    from rollout_assets.sources.vin_store import VinOfflineStore

    VinOfflineStore.open(missing)


def appended_source(missing: Path) -> None:
    from rollout_assets.synthetic.store import append_synthetic_snippets

    append_synthetic_snippets(missing, 1)


def loaded_furniture(missing: Path) -> None:
    from rollout_assets.synthetic.furniture_files import load_furniture

    load_furniture(missing, 1)


def found_scenes(missing: Path) -> None:
    from rollout_assets.importing.scene_folder import find_scenes

    find_scenes(missing)


def found_stores(missing: Path) -> None:
    from rollout_assets.inspection.inventory import discover_rollout_store_paths

    discover_rollout_store_paths(missing)


def loaded_policy(missing: Path) -> None:
    from rollout_assets.learning.checkpoints import load_policy

    load_policy(missing)


def listed_schema(missing: Path) -> None:
    from rollout_assets.rollouts.zarr_store.summary import schema_rows

    schema_rows(str(missing))


OPENED: dict[Callable[[Path], None], tuple[str, ...]] = {
    opened_store: ("store", "info", "{}"),
    opened_source: ("source", "info", "{}"),
    appended_source: ("source", "append", "{}"),
    loaded_furniture: ("source", "build", "built", "--furniture", "{}"),
    found_scenes: ("source", "import", "{}", "imported"),
    found_stores: ("inspect", "inventory", "{}"),
    loaded_policy: ("policy", "show", "{}"),
    listed_schema: ("store", "schema", "{}"),
}
"""What opens a thing -> a command that looks for the thing itself before it imports what opens it."""


@pytest.mark.parametrize("opens", OPENED, ids=lambda opens: opens.__name__)
def test_an_early_refusal_is_that_of_the_function_that_opens(opens, tmp_path):
    missing = tmp_path / "nowhere"
    with pytest.raises(RolloutAssetsError) as refused:
        opens(missing)
    done = call(*(part.format(missing) for part in OPENED[opens]))
    assert (done.code, done.err) == (2, f"error: {refused.value}\n")


def test_choices_of_options_are_those_of_the_rooms():
    from rollout_assets.inspection.suspicious import KINDS
    from rollout_assets.rollouts.zarr_store.foreign.origin import Profile

    assert get_args(store_command.Profile) == get_args(Profile)
    assert get_args(SuspiciousKind) == tuple(KINDS)


@pytest.mark.parametrize("package", ["", ".rollouts", ".collection", ".evaluation", ".learning"])
def test_importing_a_package_loads_none_of_its_rooms(package):
    loaded = modules_after(f"import rollout_assets{package}")
    allowed = {"rollout_assets", "rollout_assets.exports", f"rollout_assets{package}"}
    assert {name for name in loaded if name.split(".")[0] == "rollout_assets"} == allowed
    assert [name for name in HEAVY if name in loaded] == []


@pytest.mark.parametrize("verb", cli.VERBS)
def test_a_line_of_help_is_the_first_paragraph_of_the_verbs_own(verb):
    first_paragraph = inspect.cleandoc(cli.load_verb(verb).help).split("\n\n")[0]
    assert " ".join(first_paragraph.split()) == cli.VERBS[verb]


def run(*arguments: str, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"{before}\n{MAIN}main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=os.environ | environment)


def test_every_module_of_commands_with_a_verb_is_listed():
    listed = {cli.MODULES.get(verb, verb) for verb in cli.VERBS}
    shown = run("--help").stdout
    assert all(f" {verb} " in shown for verb in cli.VERBS)
    assert listed >= {"source", "config", "campaign", "store", "inspect", "bench", "dagster"}


def test_a_mistyped_verb_is_refused_with_the_nearest_one():
    refused = run("stroe")
    assert refused.returncode == 2 and "'store'" in refused.stderr


@pytest.mark.parametrize(("typed", "offered"), [("con", ["config"]), ("config va", ["validate"])])
def test_a_shell_completes_verbs_and_what_is_below_them(typed, offered):
    shell = {"_ROLLOUT_ASSETS_COMPLETE": "complete_bash", "COMP_WORDS": f"rollout-assets {typed}"}
    named = "import sys; sys.argv[0] = 'rollout-assets'"
    completed = run(before=named, COMP_CWORD=str(len(typed.split())), **shell)
    assert completed.stdout.split() == offered


def test_the_version_is_the_packages():
    from rollout_assets import __version__

    assert run("--version").stdout == f"rollout-assets {__version__}\n"


@pytest.mark.parametrize(
    ("flags", "level", "heard"),
    [((), "warning", False), (("-v",), "info", True), (("-v",), "debug", False), (("-vv",), "debug", True)],
)
def test_the_log_is_silent_unless_asked_for(flags, level, heard):
    speak = f"import atexit, logging; atexit.register(logging.getLogger('rollout_assets.x').{level}, 'spoken')"
    done = run(*flags, "config", "list", before=speak)
    assert done.returncode == 0 and "demo" in done.stdout.split()
    assert done.stderr == (f"{level.upper()} rollout_assets.x: spoken\n" if heard else "")


def test_the_library_adds_no_handler_that_prints():
    import rollout_assets  # noqa: F401

    assert all(isinstance(h, logging.NullHandler) for h in logging.getLogger("rollout_assets").handlers)


@pytest.mark.parametrize(
    ("package", "verb", "extra"),
    [
        ("warp", "rollout", "platform"),
        ("plotly", "report", "reports"),
        ("warp", "report", "reports"),
        ("dagster", "ui", "platform"),
    ],
)
def test_a_verb_whose_package_is_missing_names_the_extra(package, verb, extra, tmp_path):
    (tmp_path / "manifest.json").touch()
    arguments = {
        "rollout": ["0", "--set", f"source.store_dir={tmp_path}"],
        "report": [str(tmp_path), "-o", str(tmp_path / "x.html")],
        "ui": [],
    }
    hidden = f"import sys; sys.modules[{package!r}] = None"
    refused = run(verb, *arguments[verb], before=hidden, DAGSTER_HOME=str(tmp_path))
    assert refused.returncode == 2
    assert refused.stderr == (
        f"error: this command needs {package}, which is not installed; run: pip install 'rollout-assets[{extra}]'\n"
    )
