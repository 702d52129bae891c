"""The front door opens fast: help and import load no command, no room and no heavy package."""

import inspect
import json
import logging
import os
import subprocess
import sys

import pytest

from rollout_assets import cli

HEAVY = ("torch", "warp", "dagster", "zarr", "polars", "plotly", "matplotlib", "trimesh", "starlette", "pydantic")
MODULES = "import sys, json; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
MAIN = "from rollout_assets.cli import main\n"


def modules_after(code: str, *arguments: str) -> list[str]:
    """Names of all modules that a fresh interpreter has loaded after some code, whether or not the code exits."""
    program = f"try:\n    exec({code!r})\nfinally:\n    {MODULES}"
    run = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120)
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
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | environment)


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
    hidden = f"import sys; sys.modules[{package!r}] = None"
    arguments = {"rollout": ["0"], "report": ["x", "-o", str(tmp_path / "x.html")], "ui": []}[verb]
    refused = run(verb, *arguments, before=hidden, DAGSTER_HOME=str(tmp_path))
    assert refused.returncode == 2
    assert refused.stderr == (
        f"error: this command needs {package}, which is not installed; run: pip install 'rollout-assets[{extra}]'\n"
    )
