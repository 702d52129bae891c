"""A run whose process is killed in the middle of a shard: shown as failed, tried again, and no trace in the data."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from dagster import DagsterRunStatus

from rollout_assets.defs.code_location import CAMPAIGNS_VARIABLE
from rollout_assets.defs.records import validated_versions
from tests.defs.browser import running_ui
from tests.defs.conftest import Desk
from tests.support.waiting import wait_until

RUN_ONE_SHARD = """
import sys
from rollout_assets.defs.headless import HeadlessRunner
runner = HeadlessRunner(*sys.argv[1:])
with runner.instance:
    print(runner.run("shard", "shard-000000").ok)
"""


def holder_of(lock: Path) -> int | None:
    """The process that holds a lock file, from the kernel's own list."""
    if not lock.exists():
        return None
    inode = f":{lock.stat().st_ino}"
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] != "->" and fields[5].endswith(inode):
            return int(fields[4])
    return None


def wait_for_build(desk: Desk, shard: str = "shard-000000") -> int:
    """The process that is in the middle of building a shard."""

    def builder() -> int | None:
        return holder_of(desk.layout.lock(shard)) if desk.layout.attempts(shard) else None

    return wait_until(builder, f"a process that builds {shard}", every_s=0.005) or 0


@pytest.mark.slow
def test_a_killed_headless_run_is_failed_and_the_next_one_finishes_the_shard(desk, finished_desk):
    runner = desk.runner()
    with runner.instance:
        assert runner.run("observe").ok and runner.run("plan").ok
    process = subprocess.Popen([sys.executable, "-c", RUN_ONE_SHARD, str(desk.campaign), str(desk.home)])
    assert wait_for_build(desk) == process.pid
    process.kill()
    assert process.wait() == -signal.SIGKILL

    result = desk.materialize()
    assert result.ok and result.promoted
    with desk.runner().instance as instance:
        statuses = [run.status for run in instance.get_runs() if run.tags.get("dagster/partition") == "shard-000000"]
    assert statuses == [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE]
    assert desk.content() == finished_desk[0].content()


@pytest.mark.slow
def test_a_killed_run_of_the_daemon_is_failed_and_retried_by_itself(desk, finished_desk):
    environment = os.environ | {"DAGSTER_HOME": str(desk.home), CAMPAIGNS_VARIABLE: str(desk.campaign)}
    switch_on = [sys.executable, "-m", "dagster", "sensor", "start", "tiny_new_snippets"]
    with running_ui(desk.home, desk.campaign):
        subprocess.run([*switch_on, "-m", "rollout_assets.definitions"], env=environment, check=True, cwd=desk.folder)
        os.kill(wait_for_build(desk), signal.SIGKILL)
        runner = desk.runner()
        with runner.instance as instance:

            def finished():
                runs = [run for run in instance.get_runs() if run.tags.get("dagster/partition") == "shard-000000"]
                both = len(validated_versions(instance, runner.keys)) == 2
                return runs if both and all(run.is_finished for run in runs) else None

            runs = wait_until(finished, "both shards validated", every_s=1)
    assert [run.status for run in runs] == [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE]
    assert runs[0].parent_run_id == runs[1].run_id
    assert desk.content() == finished_desk[0].content()
