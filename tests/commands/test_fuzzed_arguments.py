"""Odd text for every argument of every verb: exit code 2 with one line, or success, never a traceback.

Verbs and their parameters come from the command line itself, so a new one is covered the day it is added.
"""

import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollout_assets import cli
from tests.commands.test_campaign_cli import TINY
from tests.inspection.handmade_stores import clean_records, write
from tests.support.commands import call

NOTES = "no second opinion: "
"""How a command that succeeds begins to say what it left out."""

MARKUP = "[/x]"
ODD = (
    MARKUP,
    "[bold]x",
    "[",
    "a\nb",
    "\r\x1b[31mred\x07",
    "'\"`$(x)\\",
    "",
    " ",
    "\0",
    "é😀\u202e",
    "\udcff",
    "\ud800",
    "long" * 25_000,
    "~nosuchuser/x",
    "nosuch://x",
    "://x",
    "²",
    "9" * 5_000,
    "nan",
    "-inf",
    "-",
    "--help me",
    "../..",
    "**x",
    "a=" + "[" * 50_000,
    "a.b=\u0000",
    "=",
    "%s{0}{x}",
    "{",
    "a,b=c,=,",
    "x.toml",
    "x.jsonl",
    "x.html",
    "x.csv",
)
SAMPLE = 2
"""Odd texts that every parameter gets without ``-m slow``, the first of ``ODD`` among them."""

NOWHERE = "nowhere.toml"
LONG_RUNNING = {"serve", "ui", "demo", "ci", "collect", "bench"}
"""Verbs that get a campaign which is not there, so that they end before they begin."""

GIVEN: dict[tuple[str, ...], dict[str, str]] = {
    ("source",): {"store": "{source}", "workers": "1"},
    ("source", "build"): {"store": "built", "scenes": "1", "snippets": "1", "faces": "30000", "furniture": "nowhere"},
    ("source", "import"): {"scenes": "nowhere", "store": "imported"},
    ("inspect", "inventory"): {"places": "."},
    ("inspect", "explain"): {"candidate": "0"},
    ("collect",): {"output": "collected.jsonl"},
    ("bench", "oracle"): {"device": "nowhere"},
    ("bench", "rollouts"): {"campaign": NOWHERE},
    ("bench", "collection"): {"campaign": NOWHERE},
    ("aggregate",): {"inputs": "*.jsonl", "output": "all.jsonl"},
    ("report",): {"output": "page.nothtml"},
    ("rollout",): {"recipe": "none"},
}
"""What a verb needs besides the fuzzed parameter, and what keeps it from working for long."""

EVERYWHERE = {"campaign": "{campaign}", "store": "{store}", "a": "{store}", "b": "{store}", "table": "steps"}
TOO_LONG = {("bench", name) for name in ("labels", "store", "promotion", "dagster", "inspect", "aggregation")}
"""Benchmarks that take numbers only: what they refuse is tested, what they accept would run for minutes."""


@dataclass(frozen=True)
class Verb:
    path: tuple[str, ...]
    parameters: tuple[Any, ...]

    def given(self) -> dict[str, str]:
        names = {parameter.name for parameter in self.parameters}
        values = EVERYWHERE | ({"campaign": NOWHERE} if self.path[0] in LONG_RUNNING else {})
        values = values | GIVEN.get(self.path[:1], {}) | GIVEN.get(self.path, {})
        required = {p.name: "x" for p in self.parameters if p.required}
        return required | {name: value for name, value in values.items() if name in names}

    def line(self, fuzzed: Any, text: str, places: dict[str, str]) -> list[str]:
        """The command line with odd text for one parameter."""
        values = {name: value.format(**places) for name, value in self.given().items()} | {fuzzed.name: text}
        options, arguments = [], []
        for parameter in self.parameters:
            if parameter.name in values and not parameter.opts[0].startswith("-"):
                arguments.append(values[parameter.name])
            elif parameter.name in values:
                options.append(f"{parameter.opts[0]}={values[parameter.name]}")
        return [*self.path, *options, "--", *arguments]


def leaves(command: Any, path: tuple[str, ...]) -> Iterator[Verb]:
    for name, inner in getattr(command, "commands", {}).items():
        yield from leaves(inner, (*path, name))
    if not hasattr(command, "commands"):
        yield Verb(path, tuple(p for p in command.params if not getattr(p, "is_flag", False)))


VERBS = [verb for name in cli.VERBS for verb in leaves(cli.load_verb(name), (name,)) if verb.path not in TOO_LONG]


@pytest.fixture(scope="session")
def places(small_store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A source, a rollout store and a small campaign; nothing here is changed by a command that is refused."""
    folder = tmp_path_factory.mktemp("fuzzed")
    write(folder / "rollouts.zarr", clean_records())
    (folder / "tiny.toml").write_text(TINY.format(source=small_store))
    return {
        "source": str(small_store),
        "store": str(folder / "rollouts.zarr"),
        "campaign": str(folder / "tiny.toml"),
    }


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths, the home and the data home lie below the test's folder, and no program replaces this one."""
    inner = tmp_path / "a" / "b" / "c"
    inner.mkdir(parents=True)
    (inner / "note.txt").write_text("so that this folder is not empty")
    monkeypatch.chdir(inner)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(os, "execve", lambda *_: sys.exit(0))


def wrong(line: list[str]) -> str:
    """What a command did that it must not do; empty if it did well."""
    done = call(*line)
    first, *entries = done.err.splitlines() or [""]
    if done.code == 2 and done.err:
        one_line = first.startswith("error: ") and all(entry.startswith("  - ") for entry in entries)
        well = one_line and "internal error" not in done.err and "Traceback" not in done.err and len(first) < 3_000
    else:
        well = done.code in (0, 2) and (not done.err or first.startswith(NOTES))
    return "" if well else f"{str(line)[:200]} -> {done.code}: {done.err[:400]}"


def test_every_verb_is_fuzzed():
    assert {verb.path[0] for verb in VERBS} == set(cli.VERBS)
    assert sum(len(verb.parameters) for verb in VERBS) > 100


@pytest.mark.ci
@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: " ".join(verb.path))
def test_odd_text_is_refused_in_one_line_or_accepted(verb, places):
    draw = random.Random(" ".join(verb.path))
    texts = {p.name: (MARKUP, *draw.sample(ODD[1:], SAMPLE - 1)) for p in verb.parameters}
    lines = [verb.line(p, text, places) for p in verb.parameters for text in texts[p.name]]
    assert [problem for line in lines if (problem := wrong(line))] == []


@pytest.mark.slow
@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: " ".join(verb.path))
def test_every_odd_text_is_refused_in_one_line_or_accepted(verb, places):
    lines = [verb.line(p, text, places) for p in verb.parameters for text in ODD]
    assert [problem for line in lines if (problem := wrong(line))] == []
