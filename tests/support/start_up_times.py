"""Processor time of every verb's ``--help`` and of one wrong input each; ``python -m tests.support.start_up_times``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rollout_assets import cli
from tests.support.waiting import PATIENCE_S

COMPUTING = (
    *("numpy", "scipy", "torch", "warp", "sklearn", "pandas", "polars", "pyarrow", "zarr", "numcodecs", "safetensors"),
    *("obstore", "fsspec", "trimesh", "plotly", "matplotlib", "dagster", "starlette", "uvicorn", "httpx", "ray"),
    *("sqlalchemy", "psycopg2", "gymnasium", "stable_baselines3"),
)
"""Packages that compute, store, draw or serve: no help needs one, and a refusal needs at most NumPy."""

UNKNOWN_OPTION = "--nosuchoption"

NO_CAMPAIGN = ("-c", "nowhere.toml")
NO_STORE = ("nowhere.zarr",)
STORE_VERBS = {
    "store": "info validate convert head export",
    "inspect": "waterfall groups targets candidates steps tree depth suspicious ready explain replay second-opinion "
    "diff",
}
CAMPAIGN_VERBS = {
    "campaign": "plan run status promote rollback unpin clean",
    "cluster": "check",
    "bench": "rollouts collection environment",
}
FURTHER_ARGUMENTS = {
    "store convert": ("copied.zarr",),
    "store head": ("steps",),
    "store export": ("steps", "steps.csv"),
    "inspect explain": ("0",),
    "inspect diff": ("nowhere_else.zarr",),
}

WRONG_INPUTS: dict[str, tuple[str, ...]] = {
    "source build": ("built", "--furniture", "nowhere"),
    "source import": ("nowhere", "imported"),
    "source append": ("nowhere",),
    "source info": ("nowhere",),
    "source check": ("nowhere",),
    "config show": ("nowhere.toml",),
    "config new": ("not a name",),
    "config hash": ("nowhere.toml",),
    "config validate": ("nowhere.toml",),
    "config list": ("nowhere.toml",),
    "store schema": ("nosuchtable",),
    "inspect inventory": ("nowhere",),
    "bench oracle": ("--seed", "none"),
    "bench kernels": ("--tree-faces", "0"),
    "bench labels": ("--homes", "0"),
    "bench store": ("--rows", "0"),
    "bench learning": ("--store", "nowhere.zarr", "--source", "nowhere"),
    "bench promotion": ("--shards", "0"),
    "bench campaign": ("--shards", "0"),
    "bench dagster": ("--demo", "--backfill"),
    "bench cluster": ("--template", "nowhere.yaml"),
    "bench inspect": ("--rows", "0"),
    "bench aggregation": ("--lines", "0"),
    "bench policies": ("--store", "nowhere.zarr", "--source", "nowhere"),
    "report": ("nowhere.zarr", "-o", "page.html"),
    "rollout": ("0", *NO_CAMPAIGN),
    "serve": NO_CAMPAIGN,
    "collect": ("nowhere.toml", "-o", "collected.jsonl"),
    "aggregate": ("nowhere*.jsonl", "-o", "all.jsonl"),
    "train": ("nowhere.toml",),
    "policy show": ("nowhere.safetensors",),
    "evaluate": ("nowhere.toml",),
    "demo": NO_CAMPAIGN,
    "ui": NO_CAMPAIGN,
    "ci": NO_CAMPAIGN,
    **{f"{verb} {name}": NO_CAMPAIGN for verb, names in CAMPAIGN_VERBS.items() for name in names.split()},
    **{
        f"{verb} {name}": NO_STORE + FURTHER_ARGUMENTS.get(f"{verb} {name}", ())
        for verb, names in STORE_VERBS.items()
        for name in names.split()
    },
}
"""Verb and sub-verb -> arguments that name something that is not there, or that no run could begin with."""

NOTHING_BUILT = (
    *("campaign plan", "campaign run", "campaign status", "campaign promote", "bench rollouts", "bench environment"),
    *("rollout 0", "serve", "collect -c demo -o collected.jsonl", "collect -c demo --write-requests requests.jsonl"),
    *("train", "train -c demo -o policy", "evaluate -c demo --policy nowhere.safetensors -o evaluated"),
)
"""Commands about the shipped campaign in a home where nothing was built yet."""


@dataclass(frozen=True)
class Case:
    """A verb or sub-verb, and arguments of it that are answered without any work."""

    command: str
    wrong: tuple[str, ...]

    @property
    def help(self) -> tuple[str, ...]:
        """Arguments that show the help."""
        return (*self.command.split(), "--help")

    @property
    def refused(self) -> tuple[str, ...]:
        """Arguments that are refused with exit code 2."""
        return (*self.command.split(), *self.wrong)

    @property
    def misspelt(self) -> tuple[str, ...]:
        """Arguments with an option that there is not."""
        return (*self.command.split(), UNKNOWN_OPTION)


def cases() -> Iterator[Case]:
    """Every verb and sub-verb of the command line; a group of sub-verbs gets one that there is not."""
    for verb in cli.VERBS:
        below = getattr(cli.load_verb(verb), "commands", None)
        yield Case(verb, ("nosuchverb",) if below else WRONG_INPUTS[verb])
        yield from (Case(f"{verb} {name}", WRONG_INPUTS[f"{verb} {name}"]) for name in below or ())


def processor_seconds(*arguments: str, folder: str) -> float:
    """User and system time of a process that runs the program with these arguments in a folder."""
    before = os.times()
    command = [sys.executable, "-m", "rollout_assets", *arguments]
    environment = os.environ | {"DAGSTER_HOME": folder, "PYTHONPATH": str(Path.cwd())}
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=PATIENCE_S)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    """Print the table, a verb a line, and the slowest of each column below it."""
    slowest = (0.0, 0.0)
    _line(f"{'command':<24}{'--help s':>10}{'wrong s':>10}  wrong input")
    with tempfile.TemporaryDirectory() as folder:
        for case in cases():
            seconds = tuple(processor_seconds(*arguments, folder=folder) for arguments in (case.help, case.refused))
            slowest = tuple(map(max, slowest, seconds))
            _line(f"{case.command:<24}{seconds[0]:>10.2f}{seconds[1]:>10.2f}  {' '.join(case.wrong)}")
    _line(f"{'slowest':<24}{slowest[0]:>10.2f}{slowest[1]:>10.2f}")


def _line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
