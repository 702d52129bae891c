"""On a CUDA device: the bits of the CPU, memory that runs out, threads, and several devices. Run with ``-m gpu``."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import warp as wp

from rollout_assets.campaigns.plan import open_source
from rollout_assets.commands.demo import build_source
from rollout_assets.config import OracleConfig
from rollout_assets.geometry.devices import resolve_device
from rollout_assets.oracle.scene import OracleScene
from rollout_assets.oracle.scorer import CandidateLabels, OracleScorer, OracleState, ScoreRequest
from rollout_assets.progress import SILENT
from tests.oracle import label_pin
from tests.oracle.rooms import CAMERA, room_mesh, root_points, target_box, views
from tests.support.digests import content_digest

pytestmark = pytest.mark.gpu


def scored(device: str, batch_mib: int = 512) -> list[CandidateLabels]:
    mesh = room_mesh(3)
    scorer = OracleScorer(OracleConfig(device=device, batch_mib=batch_mib))
    scene = OracleScene(mesh.vertices, mesh.faces, device)
    state = scorer.begin(scene, CAMERA, scorer.fuse(scene, root_points(mesh)), target_box())
    assert isinstance(state, OracleState)
    after = scorer.advance(state, views(1, seed=3)[0])
    return scorer.score([ScoreRequest(each, views(64), np.ones(64, bool)) for each in (state, after)])


def test_labels_of_a_room_are_those_of_the_cpu() -> None:
    assert content_digest(scored("cuda")) == content_digest(scored("cpu"))


def test_rows_of_the_demo_are_those_of_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    config = label_pin.demo_config()
    build_source(config, SILENT)
    store = open_source(config)
    on_gpu = config.model_copy(update={"oracle": config.oracle.model_copy(update={"device": "cuda"})})
    assert list(label_pin.rows(store, on_gpu, 2)) == list(label_pin.rows(store, config, 2))


def test_memory_that_runs_out_halves_the_batch() -> None:
    expected = content_digest(scored("cuda"))
    device = wp.get_device(resolve_device("cuda"))
    hoard = []
    while device.free_memory > 96 << 20:
        hoard.append(wp.empty(min(device.free_memory - (64 << 20), 1 << 30), dtype=wp.uint8, device=device))
    assert content_digest(scored("cuda", batch_mib=16_384)) == expected


def test_threads_share_a_device() -> None:
    expected = content_digest(scored("cuda"))
    results: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda k=k: results.update({k: content_digest(scored("cuda"))})) for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(range(4), expected)


def test_every_device_gives_the_same_bits() -> None:
    count = wp.get_cuda_device_count()
    if count < 2:
        pytest.skip("one device only")
    assert len({content_digest(scored(f"cuda:{index}")) for index in range(count)}) == 1
