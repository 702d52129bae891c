"""Every command that starts processes: they end with it however it ends, hand back their locks, and may be killed."""

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
from tests.collection.collect_processes import children_of, is_running, start, wait_for

GONE_WITHIN_S = 15.0
"""Far above the few seconds that it takes, and far below the minutes that the commands would go on."""

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
"""Every shard takes so long that no run of it ends before it is ended."""


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
        assert not finished(), "a worker went on after its parent had ended"

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
    """The running command, and its two workers once both are at work."""
    process = start(*command.arguments)

    def both() -> list[int] | None:
        assert process.poll() is None, process.communicate()[0]
        workers = workers_of(process.pid)
        return workers if len(workers) == 2 and command.is_at_work() else None

    return process, wait_for(both, 120.0)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))


def slow_if(slow: bool) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if slow else []


FAST = (campaign_run, source_build)

ENDINGS = [
    pytest.param(make, ending, marks=slow_if(make not in FAST or (make is source_build and ending == signal.SIGTERM)))
    for make in COMMANDS
    for ending in (signal.SIGTERM, signal.SIGKILL)
]


@pytest.mark.parametrize(("make", "ending"), ENDINGS)
def test_children_end_with_their_command_and_hand_back_their_locks(
    make: Callable[[Path, Path], Command], ending: signal.Signals, store_copy: Path, tmp_path: Path
) -> None:
    command = make(tmp_path, store_copy)
    process, workers = started(command)
    children = children_of(process.pid)
    process.send_signal(ending)
    wait_for(lambda: not any(map(is_running, [process.pid, *children])), GONE_WITHIN_S)
    assert process.communicate()[1] is None and process.returncode != 0 and set(workers) <= set(children)
    assert not any(map(is_locked, command.locks()))
    command.then()


KILLED = [pytest.param(make, marks=slow_if(make not in FAST)) for make in COMMANDS if make is not collect]


@pytest.mark.parametrize("make", KILLED)
def test_a_killed_worker_is_named_and_never_an_internal_error(
    make: Callable[[Path, Path], Command], store_copy: Path, tmp_path: Path
) -> None:
    process, workers = started(make(tmp_path, store_copy))
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 2 and "internal error" not in told and "Traceback" not in told
    assert "its worker process was ended by signal 9 (Killed); run it again" in told
