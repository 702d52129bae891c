"""To a user's mypy the public names are classes and functions, not ``Any``."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rollout_assets
from tests.support.refusals import assert_names, refused
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
CLIENT = Path(__file__).with_name("client_program.py")
PACKAGES = (
    *("rollout_assets", "rollout_assets.rollouts", "rollout_assets.collection", "rollout_assets.evaluation"),
    *("rollout_assets.learning", "rollout_assets.learning.environment"),
)

WRONG = """
from typing import Any, reveal_type
import rollout_assets
rollout_assets.QHIterableDataset("store", batch_size="many")
rollout_assets.open_sesame
def untyped(value: Any) -> None:
    reveal_type(value)
"""


def reveal_every_name() -> str:
    """Return a program that reveals the type of every public name."""
    names = [f"{package}.{name}" for package in PACKAGES for name in importlib.import_module(package).__all__]
    lines = [f"import {package}" for package in PACKAGES] + [f"reveal_type({name})" for name in names]
    return "\n".join(["from typing import reveal_type", *lines]) + "\n"


@pytest.fixture(scope="module")
def mypy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return what mypy reports, line by line, about the client, all names, and a program with mistakes.

    It is as strict as for the package. Other options here would discard the cache that both share.
    """
    folder = tmp_path_factory.mktemp("programs")
    programs = {"client": CLIENT, "names": folder / "every_name.py", "wrong": folder / "wrong_program.py"}
    programs["names"].write_text(reveal_every_name())
    programs["wrong"].write_text(WRONG)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, programs.values())]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S).stdout.splitlines()
    return {
        name: [line.split(":", 2)[2].strip() for line in lines if path.name in line] for name, path in programs.items()
    }


def revealed(lines: list[str]) -> list[str]:
    return [match[1] for line in lines if (match := re.match(r'note: Revealed type is "(.*)"', line))]


@pytest.mark.ci
def test_a_client_program_has_no_error_and_sees_no_any(mypy):
    assert [line for line in mypy["client"] if line.startswith("error")] == []
    types = revealed(mypy["client"])
    assert len(types) == CLIENT.read_text().count(" reveal_type(") > 20
    assert [shown for shown in types if re.search(r"\bAny\b", shown)] == []


@pytest.mark.ci
def test_no_public_name_is_any(mypy):
    assert [line for line in mypy["names"] if line.startswith("error")] == []
    types = revealed(mypy["names"])
    assert len(types) == reveal_every_name().count("\nreveal_type(") > 100
    assert "Any" not in types


@pytest.mark.ci
def test_a_wrong_call_and_an_untyped_name_are_seen(mypy):
    errors = "\n".join(line for line in mypy["wrong"] if line.startswith("error"))
    assert_names(errors, "[arg-type]", '"str"', '"int"', "[attr-defined]", "open_sesame")
    assert revealed(mypy["wrong"]) == ["Any"]


@pytest.mark.ci
def test_the_package_says_that_it_is_typed():
    assert (Path(rollout_assets.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.ci
def test_every_name_of_a_stub_can_be_loaded(package):
    module = importlib.import_module(package)
    assert [name for name in module.__all__ if getattr(module, name, None) is None] == []
    with refused(AttributeError, "open_sesame"):
        module.open_sesame  # noqa: B018
