"""Commands that start processes: the children end with the command, free their locks, and may be killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.files import is_locked
from rollout_assets.sources.vin_store import VinOfflineStore
from tests.collection.collect_processes import children_of, is_running, start
from tests.support.refusals import assert_names
from tests.support.waiting import PATIENCE_S, wait_until

CAMPAIGN = """
name = "long"
source = {{ store_dir = "{source}", splits = ["train"] }}
oracle = {{ width_px = 160, height_px = 160, device = "cpu" }}
shards = {{ rows_per_shard = 1, output_dir = "long" }}
targets.top_k = 3

[[candidates.mixture]]
position = "forward_local"
count = 600

[[recipes]]
name = "greedy"
policy = "oracle_greedy"
horizon = 6
"""
"""Every shard takes so long that a run ends only because a test ends it."""


@dataclass(frozen=True)
class Command:
    """A command, whether two of its children are at work, and the locks that must be free afterwards."""

    arguments: tuple[object, ...]
    is_at_work: Callable[[], bool]
    locks: Callable[[], list[Path]]
    then: Callable[[], object] = lambda: None


def campaign(folder: Path, source: Path, *verb: str) -> Command:
    path = folder / "long.toml"
    path.write_text(CAMPAIGN.format(source=source))
    locks = CampaignLayout(folder / "long").root / "locks"

    def shard_locks() -> list[Path]:
        return sorted(locks.glob("shard-*.lock"))

    def finished() -> bool:
        return any((folder / "long").glob("shards/*/_SUCCESS.json"))

    def then() -> None:
        assert not finished(), "a worker continued after its parent had ended"

    arguments = (*verb, "-c", path, "--workers", 2)
    return Command(arguments, lambda: sum(map(is_locked, shard_locks())) == 2, shard_locks, then)


def campaign_run(folder: Path, source: Path) -> Command:
    return campaign(folder, source, "campaign", "run")


def ci(folder: Path, source: Path) -> Command:
    return campaign(folder, source, "ci")


def source_build(folder: Path, source: Path) -> Command:
    building = folder / ".building-new"
    arguments = ("source", "build", folder / "new", "--scenes", 9, "--snippets", 9, "--faces", 400_000, "--workers", 2)
    return Command(arguments, lambda: (building / "shards").is_dir(), lambda: [building])


def source_append(folder: Path, source: Path) -> Command:
    options = ("--snippets", 0, "--new-scenes", 9, "--workers", 2)
    before = len(VinOfflineStore.open(source))

    def then() -> None:
        assert len(VinOfflineStore.open(source)) == before

    return Command(("source", "append", source, *options), lambda: is_locked(source), lambda: [source], then)


def collect(folder: Path, source: Path) -> Command:
    path = folder / "long.toml"
    path.write_text(CAMPAIGN.format(source=source))
    options = ("--split", "train", "-o", folder / "out.jsonl", "--servers", 2)
    return Command(("collect", "-c", path, *options), lambda: True, list)


COMMANDS = (campaign_run, ci, source_build, source_append, collect)
AT_WORK = ("spawn_main", "serve")
"""What the command line of a child that does the work says: of a pool's, or of a fleet's."""


def workers_of(process: int) -> list[int]:
    lines = {child: Path(f"/proc/{child}/cmdline").read_text() for child in children_of(process)}
    return [child for child, line in lines.items() if any(word in line for word in AT_WORK)]


def started(command: Command) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a command and return it with its two workers once both are at work."""
    process = start(*command.arguments)

    def both() -> list[int] | None:
        assert process.poll() is None, process.communicate()[0]
        workers = workers_of(process.pid)
        return workers if len(workers) == 2 and command.is_at_work() else None

    return process, wait_until(both, "two workers at work")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))


def marks_of(make: Callable[[Path, Path], Command]) -> list[pytest.MarkDecorator]:
    """``tests/test_workers.py`` holds the same of the pool in every run."""
    return [pytest.mark.ci if make in (campaign_run, source_build) else pytest.mark.slow]


ENDINGS = [
    pytest.param(make, ending, marks=marks_of(make)) for make in COMMANDS for ending in (signal.SIGTERM, signal.SIGKILL)
]


@pytest.mark.parametrize(("make", "ending"), ENDINGS)
def test_children_end_with_their_command_and_free_their_locks(
    make: Callable[[Path, Path], Command], ending: signal.Signals, store_copy: Path, tmp_path: Path
) -> None:
    command = make(tmp_path, store_copy)
    process, workers = started(command)
    children = children_of(process.pid)
    process.send_signal(ending)
    wait_until(lambda: not any(map(is_running, [process.pid, *children])), "the command and its children to end")
    assert process.communicate()[1] is None and process.returncode != 0 and set(workers) <= set(children)
    assert not any(map(is_locked, command.locks()))
    command.then()


KILLED = [pytest.param(make, marks=marks_of(make)) for make in COMMANDS if make is not collect]


@pytest.mark.parametrize("make", KILLED)
def test_a_killed_worker_is_an_ordinary_error(
    make: Callable[[Path, Path], Command], store_copy: Path, tmp_path: Path
) -> None:
    process, workers = started(make(tmp_path, store_copy))
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    told, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2 and "internal error" not in told and "Traceback" not in told
    assert_names(told, "worker process", "signal 9")
