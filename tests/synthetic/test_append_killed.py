"""An append killed at any moment leaves the old store readable, and the next append finishes the work alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.synthetic.store import append_synthetic_snippets, build_synthetic_store
from tests.support.waiting import PATIENCE_S
from tests.synthetic.synthetic_homes import SMALL

PUBLISHED = 7
"""Renames of an append that readers can see: mesh, shard, index, three split files, manifest."""

COMPLETE = PUBLISHED + 1
"""The attempt that is left alone; the one before it dies among the files of a shard."""

KILLER = """
import os, shutil, signal, sys
from pathlib import Path
from rollout_assets.geometry import triangle_bvh
from rollout_assets.synthetic.store import append_synthetic_snippets

base, published = Path(sys.argv[1]), int(sys.argv[2])
rename, replace = Path.rename, Path.replace

def dying(original, visible, left):
    def move(self, target):
        if (".partial-" not in str(target)) == visible:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
        return original(self, target)
    return move

for attempt in range(published + 2):
    store = base / f"killed-{attempt}"
    shutil.copytree(base / "source", store)
    child = os.fork()
    if child == 0:
        left = [5 if attempt == published else attempt]
        Path.rename = dying(rename, attempt != published, left)
        Path.replace = dying(replace, attempt != published, left)
        append_synthetic_snippets(store, 0, 1, workers=1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(attempt, os.WTERMSIG(status) if os.WIFSIGNALED(status) else "finished", flush=True)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("killed")
    tiny = SMALL.model_copy(update={"scenes": 1, "snippets_per_scene": 1, "poses": 4})
    build_synthetic_store(base / "source", tiny)
    command = [sys.executable, "-c", KILLER, str(base), str(PUBLISHED)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert ended.stdout.splitlines() == [f"{step} 9" for step in range(COMPLETE)] + [f"{COMPLETE} finished"]
    return base


def _content(root: Path) -> dict[str, bytes]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("step", range(COMPLETE))
@pytest.mark.ci
def test_a_killed_append_changes_nothing_for_readers_and_is_repaired_by_the_next(killed: Path, step: int) -> None:
    store = killed / f"killed-{step}"
    before, after = VinOfflineStore.open(killed / "source"), VinOfflineStore.open(store)
    assert after.rows() == before.rows()
    assert after.source_manifest_hash == before.source_manifest_hash
    for split in ("train", "val"):
        assert after.rows(split) == before.rows(split)
    assert after.sample(after.row(0)).truth.mesh_path is not None
    append_synthetic_snippets(store, 0, 1, workers=1)
    assert _content(store) == _content(killed / f"killed-{COMPLETE}")
    shutil.rmtree(store)
