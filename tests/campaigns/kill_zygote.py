"""A process that has everything imported and forks one that builds or promotes, to be killed.

One JSON request a line on stdin, one JSON answer a line on stdout. The child kills itself at the n-th call of a named
step, or is killed after a delay; no time goes into imports, and nothing but SIGKILL ever ends it early.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollout_assets.campaigns import dataset_writer  # noqa: F401 - imported before the fork, for speed
from rollout_assets.campaigns.plan import entry_of
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.shard import run_rollout_shard
from rollout_assets.locations.url import parse_location
from tests.campaigns.kill_campaigns import ROWS, fake_campaign, real


def work(request: dict[str, Any], on_step: Callable[[str], None]) -> None:
    root = parse_location(request["root"])
    if request["kind"] == "real":
        run_rollout_shard(real(root, Path(request["source"])), request["shard"], on_step=on_step)
        return
    campaign = fake_campaign(root, request.get("rows", ROWS))
    if request["kind"] == "shard":
        campaign.run(entry_of(campaign.config, request["shard"]), on_step)
    else:
        promote_rollout_campaign(campaign.config, on_step=on_step)


def child(request: dict[str, Any]) -> None:
    """Never returns."""
    left = request.get("nth", 0)

    def on_step(step: str) -> None:
        nonlocal left
        if step == request.get("step"):
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    try:
        work(request, on_step)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        began = time.perf_counter()
        process = os.fork()
        if process == 0:
            child(request)
        if request.get("delay") is not None:
            time.sleep(request["delay"])
            os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        answer = {
            "killed": os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL,
            "ok": os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0,
            "seconds": time.perf_counter() - began,
        }
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
