"""Training learns, stops, is killed and goes on as if nothing had happened, and refuses to go on as something else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from rollout_assets.config import CampaignConfig, toml_text
from rollout_assets.config.training import TrainingConfig, load_training
from rollout_assets.errors import ConfigError, TrainingError
from rollout_assets.learning.checkpoints import load_policy, read_card
from rollout_assets.learning.training.data import open_training_data
from rollout_assets.learning.training.resume import RESUME_NAME
from rollout_assets.learning.training.run import METRICS_NAME, POLICY_NAME, read_metrics, train_policy
from rollout_assets.progress import ProgressEvent
from rollout_assets.sources.vin_store import VinOfflineStore
from tests.inspection.conftest import write_campaign
from tests.support.refusals import refused
from tests.support.waiting import wait_until


@pytest.fixture(scope="session")
def two_scenes(observed_campaign: CampaignConfig, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A store of each split, which are two scenes. Shared."""
    source = VinOfflineStore.open(observed_campaign.source.store_dir)
    folder = tmp_path_factory.mktemp("two_scenes")
    return [
        write_campaign(observed_campaign, folder / split, [row.sample_index for row in source.rows(split)])
        for split in ("train", "val")
    ]


@pytest.fixture
def config(two_scenes: list[Path], small_store: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainingConfig:
    return TrainingConfig(
        stores=tuple(two_scenes),
        sources=(small_store,),
        batch_size=4,
        epochs=2,
        threads=1,
        observation={"points": 32, "history": 3},
        network={"patches": 2, "width": 8, "heads": 2, "layers": 1},
        resume_batches=2,
        cache_dir=tmp_path_factory.getbasetemp() / "observations",
    )


def changed(config: TrainingConfig, **changes: object) -> TrainingConfig:
    return TrainingConfig.model_validate(config.model_dump() | changes)


def test_a_training_leaves_a_policy_metrics_and_a_summary(config: TrainingConfig, tmp_path: Path) -> None:
    events: list[ProgressEvent] = []
    result = train_policy(config, tmp_path / "run", progress=events.append)
    policy = load_policy(result.checkpoint)
    data = open_training_data(config)
    assert policy.card.scenes == tuple(data.train_scenes)
    assert policy.card.validation_scenes == tuple(data.validation_scenes)
    assert not set(data.train_scenes) & set(data.validation_scenes)
    assert policy.card.training_config_hash == config.config_hash
    assert policy.card.stores == tuple(data.versions)
    rows = read_metrics(result.folder)
    assert [row["epoch"] for row in rows] == [0, 1]
    assert all(0 < row["validation_states"] <= data.validation_states for row in rows)
    best = max(rows, key=lambda row: row["validation_share_of_headroom"])
    assert (result.best_epoch, result.epochs, result.stopped_by) == (best["epoch"], 2, "epochs")
    assert json.loads((result.folder / "training.json").read_text())["checkpoint_sha256"] == result.checkpoint_sha256
    training = [event for event in events if event.task == "training"]
    assert [event.done for event in training] == list(range(1, len(training) + 1))
    assert training[-1].total == len(training)


def test_the_same_training_gives_the_same_bytes(config: TrainingConfig, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    first, second = (train_policy(config, tmp_path / name) for name in ("a", "b"))
    assert first.checkpoint.read_bytes() == second.checkpoint.read_bytes()
    other = train_policy(changed(config, seed=1), tmp_path / "c")
    assert other.checkpoint.read_bytes() != first.checkpoint.read_bytes()
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("head", ["gain", "q"])
def test_stopped_within_an_epoch_and_resumed_gives_the_same_bytes(
    config: TrainingConfig, tmp_path: Path, head: str
) -> None:
    config = changed(config, head=head)
    whole = train_policy(config, tmp_path / "whole")

    def stop(event: ProgressEvent) -> None:
        if event.task == "training" and event.done in stops:
            stops.remove(event.done)
            raise KeyboardInterrupt

    stops = [3, 8, 9]
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            train_policy(config, tmp_path / "parts", resume=True, progress=stop)
    resumed = train_policy(config, tmp_path / "parts", resume=True)
    assert resumed.checkpoint.read_bytes() == whole.checkpoint.read_bytes()
    assert _without_time(tmp_path / "parts") == _without_time(tmp_path / "whole")


def _without_time(folder: Path) -> list[dict[str, object]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in read_metrics(folder)]


def test_a_finished_training_is_resumed_without_work(config: TrainingConfig, tmp_path: Path) -> None:
    first = train_policy(config, tmp_path)
    events: list[ProgressEvent] = []
    again = train_policy(config, tmp_path, resume=True, progress=events.append)
    assert (again.checkpoint_sha256, again.epochs, events) == (first.checkpoint_sha256, first.epochs, [])


def test_what_is_there_is_not_overwritten(config: TrainingConfig, tmp_path: Path) -> None:
    train_policy(config, tmp_path)
    with refused(TrainingError, tmp_path, "resume.safetensors, policy.safetensors, metrics.jsonl"):
        train_policy(config, tmp_path)


def test_resuming_another_training_names_what_differs(
    config: TrainingConfig, two_scenes: list[Path], tmp_path: Path
) -> None:
    train_policy(config, tmp_path)
    other = changed(config, optimizer={"learning_rate": 0.1}, batch_size=5)
    with refused(TrainingError, "config.batch_size", 4, 5, "config.optimizer.learning_rate", 0.002, 0.1):
        train_policy(other, tmp_path, resume=True)
    with refused(TrainingError, "stores", tmp_path / RESUME_NAME):
        train_policy(changed(config, stores=list(reversed(two_scenes))), tmp_path, resume=True)
    train_policy(changed(config, resume_batches=7, device="cpu"), tmp_path, resume=True)


def test_a_damaged_resume_file_is_one_line(config: TrainingConfig, tmp_path: Path) -> None:
    train_policy(config, tmp_path)
    path = tmp_path / RESUME_NAME
    path.write_bytes(path.read_bytes()[:-9])
    with refused(TrainingError, path):
        train_policy(config, tmp_path, resume=True)


def test_training_stops_when_nothing_improves(config: TrainingConfig, tmp_path: Path) -> None:
    still = changed(config, epochs=9, patience=1, optimizer={"learning_rate": 1e-12})
    result = train_policy(still, tmp_path)
    assert result.stopped_by == "patience"
    assert (result.best_epoch, result.epochs) == (0, 2)


def test_training_stops_when_time_is_up(config: TrainingConfig, tmp_path: Path) -> None:
    result = train_policy(changed(config, epochs=9, max_minutes=1e-6), tmp_path)
    assert (result.stopped_by, result.epochs) == ("max_minutes", 1)


@pytest.mark.slow
def test_a_gain_can_be_learned_by_heart(config: TrainingConfig, tmp_path: Path) -> None:
    """Trained and validated on the same states, most of the headroom is recovered."""
    same = config.model_dump() | {"epochs": 60, "patience": 60, "network": {"patches": 2, "width": 16, "dropout": 0.0}}
    same["validation"] = {"stores": list(config.stores)}
    result = train_policy(TrainingConfig.model_validate(same), tmp_path)
    assert result.validation["validation_share_of_headroom"] > 0.6
    first, *_, last = read_metrics(tmp_path)
    assert last["loss"] < 0.7 * first["loss"]


def test_equal_states_count_once(config: TrainingConfig) -> None:
    distinct, all_of_them = (open_training_data(changed(config, distinct_states=on)).states for on in (True, False))
    assert 0 < distinct < all_of_them


def test_the_loss_must_be_finite(config: TrainingConfig, tmp_path: Path) -> None:
    with refused(TrainingError, "batch", "optimizer.learning_rate"):
        train_policy(changed(config, optimizer={"learning_rate": 1e30, "max_gradient_norm": 1e30}), tmp_path)


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"stores": []}, "stores"), ({"sources": []}, "sources")],
)
def test_data_that_cannot_be_trained_on_is_one_line(
    config: TrainingConfig, tmp_path: Path, changes: dict[str, list[str]], name: str
) -> None:
    with refused(TrainingError, name):
        train_policy(changed(config, **changes), tmp_path)


def test_one_scene_cannot_be_divided(config: TrainingConfig, two_scenes: list[Path], tmp_path: Path) -> None:
    with refused(TrainingError, "1 scene", "validation.stores"):
        train_policy(changed(config, stores=[two_scenes[0]]), tmp_path)


def test_a_training_file_names_every_problem(tmp_path: Path) -> None:
    path = tmp_path / "training.toml"
    path.write_text('batch_size = 0\n[network]\nwidht = 3\n[optimizer]\nlearning_rate = "fast"\n')
    with pytest.raises(ConfigError) as refused:
        load_training(path)
    for part in ("3 problems", "batch_size", "did you mean width?", "optimizer.learning_rate"):
        assert part in str(refused.value)


def test_paths_and_devices_do_not_change_the_hash(config: TrainingConfig) -> None:
    same = changed(config, stores=["elsewhere"], sources=["other"], device="cuda", workers=3, resume_batches=9)
    assert same.config_hash == config.config_hash
    assert changed(config, threads=2).config_hash != config.config_hash


_TRAIN = """
import sys
from pathlib import Path
from rollout_assets.config.training import load_training
from rollout_assets.learning.training.run import train_policy
train_policy(load_training(Path(sys.argv[1])), Path(sys.argv[2]), resume=True)
"""


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same_bytes(config: TrainingConfig, tmp_path: Path) -> None:
    """A real process, killed by SIGKILL wherever it happens to be, several times."""
    config = changed(config, epochs=12, patience=12, resume_batches=1)
    path = tmp_path / "training.toml"
    path.write_text(toml_text(config))
    whole = train_policy(load_training(path), tmp_path / "whole")
    folder = tmp_path / "parts"
    kills = 0
    while kills < 3 and not (folder / POLICY_NAME).exists():
        before = (folder / RESUME_NAME).stat().st_mtime_ns if (folder / RESUME_NAME).exists() else 0
        process = subprocess.Popen([sys.executable, "-c", _TRAIN, str(path), str(folder)])
        _wait_for_news(folder / RESUME_NAME, before, process)
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
    assert kills >= 1
    resumed = train_policy(load_training(path), folder, resume=True)
    assert resumed.checkpoint.read_bytes() == whole.checkpoint.read_bytes()
    assert len((folder / METRICS_NAME).read_text().splitlines()) == 12
    assert read_card(whole.checkpoint).metrics == whole.validation


def _wait_for_news(path: Path, before: int, process: subprocess.Popen[bytes]) -> None:
    def there() -> bool:
        return process.poll() is not None or (path.exists() and path.stat().st_mtime_ns > before)

    wait_until(there, "a resume point")
