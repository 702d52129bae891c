"""A dataset reads one version of a store, whatever is promoted meanwhile, and says so when that version is gone."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.versions import make_current
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import StoreError
from rollout_assets.learning import QHBatch, QHDataset, QHIterableDataset, QHLoader
from rollout_assets.rollouts import promote_rollout_campaign, prune_promoted_versions
from tests.campaigns.kill_campaigns import fake_campaign
from tests.support.refusals import refused
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.ci

WORKERS = (0, 1, 2)
OPTIONS = {"rows_per_shard": 4, "store": {"chunk_states": 4}, "options": {"targets": 3, "chains": 2, "shell": (3, 5)}}
SMALL = (("train", 4), ("val", 1))
LARGE = (*SMALL, ("train", 4))

Contents = tuple[list[int], list[list[int]], list[float]]
Epoch = list[Contents]


@dataclass(frozen=True)
class Promoted:
    """A campaign with one promoted version, and the shards for a larger one."""

    config: CampaignConfig

    @property
    def train(self) -> Path:
        return CampaignLayout.of(self.config).promoted / "train"

    def version(self, number: int) -> Path:
        return CampaignLayout.of(self.config).versions / f"v{number:06d}" / "train"

    def promote(self) -> None:
        promote_rollout_campaign(self.config)

    def switch_to(self, number: int) -> None:
        make_current(CampaignLayout.of(self.config), f"v{number:06d}")


def loader(store: Path, workers: int = 0, **options: Any) -> QHLoader:
    return QHLoader(QHIterableDataset(store, 4, seed=1, window_units=1, **options), num_workers=workers)


def contents(batch: QHBatch) -> Contents:
    return batch.state_step_row_id.tolist(), batch.candidate_row_id.tolist(), batch.td_reward.nan_to_num().tolist()


def epoch(batches: Iterator[QHBatch] | QHLoader) -> Epoch:
    return [contents(batch) for batch in batches]


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Promoted:
    """``rollouts.zarr`` is version 1; promoting once more makes a version 2 with twice as many states."""
    folder = tmp_path_factory.mktemp("campaign")
    first = fake_campaign(folder, SMALL, **OPTIONS)
    first.run_all()
    promote_rollout_campaign(first.config)
    second = fake_campaign(folder, LARGE, **OPTIONS)
    second.run_all()
    return Promoted(second.config)


@pytest.fixture(scope="module")
def epochs(grown: Promoted) -> list[Epoch]:
    """The first two epochs of version 1."""
    plain = loader(grown.version(1))
    return [epoch(plain), epoch(plain)]


def test_promoting_inside_and_between_epochs_changes_nothing(grown: Promoted, epochs: list[Epoch]) -> None:
    assert len(epochs[0]) > 6 and epochs[0] != epochs[1]
    loaders = {workers: loader(grown.train, workers) for workers in WORKERS}
    ranks = [loader(grown.train, 1, rank=rank, world_size=2, tail="repeat") for rank in range(2)]
    running = [iter(loaded) for loaded in (*loaders.values(), *ranks)]
    begun = [[contents(next(batches))] for batches in running]
    grown.promote()
    assert grown.train.resolve() == grown.version(2)
    for batches, states in zip(running, begun, strict=True):
        states += epoch(batches)
    assert begun[: len(WORKERS)] == [epochs[0]] * len(WORKERS)
    rows = {row for batches in begun[len(WORKERS) :] for states, _, _ in batches for row in states}
    assert rows == {row for states, _, _ in epochs[0] for row in states}
    for workers, loaded in loaders.items():
        assert epoch(loaded) == epochs[1], workers
        assert loaded.state_dict()["stores"] == list(QHDataset(grown.version(1)).versions)
    assert len(loader(grown.train)) > len(epochs[0]), "a new dataset gets the new version"


@pytest.fixture
def promoted(grown: Promoted, tmp_path: Path) -> Promoted:
    """Both versions, of which 1 is current."""
    if not grown.version(2).exists():
        grown.promote()
    folder = tmp_path / "campaign"
    shutil.copytree(grown.config.shards.output_dir, folder, symlinks=True, ignore=shutil.ignore_patterns("shards"))
    copy = Promoted(fake_campaign(folder, LARGE, **OPTIONS).config)
    copy.switch_to(1)
    return copy


def test_a_shorter_version_does_not_get_in_either(promoted: Promoted) -> None:
    promoted.switch_to(2)
    expected = epoch(loader(promoted.version(2)))
    running = [loader(promoted.train, workers) for workers in WORKERS]
    mapped = QHDataset(promoted.train, cached_units=1)
    promoted.switch_to(1)
    assert [epoch(loaded) for loaded in running] == [expected] * len(WORKERS)
    assert mapped.batch(range(len(mapped))).td_reward.shape == (running[0].dataset.source.total,)


def test_a_version_that_is_gone_is_refused(promoted: Promoted) -> None:
    begun = [iter(loader(promoted.train, workers)) for workers in WORKERS]
    for batches in begun:
        next(batches)
    later = [loader(promoted.train, workers) for workers in WORKERS]
    mapped = QHDataset(promoted.train, cached_units=1)
    promoted.switch_to(2)
    prune_promoted_versions(promoted.config, keep=1)
    assert not promoted.version(1).exists()
    gone = (promoted.version(1), promoted.train, "[retention] versions")
    for batches in (*begun, *later):
        with refused(StoreError, *gone):
            epoch(batches)
    with refused(StoreError, *gone):
        mapped[len(mapped) - 1]


def test_a_version_made_anew_in_the_same_place_is_refused(promoted: Promoted) -> None:
    running = loader(promoted.train)
    promoted.version(1).rename(promoted.version(1).with_name("away"))
    promoted.version(2).rename(promoted.version(1))
    with refused(StoreError, promoted.version(1), promoted.train):
        epoch(running)


def test_stores_of_one_root_are_of_one_version(promoted: Promoted, monkeypatch: pytest.MonkeyPatch) -> None:
    root = promoted.train.parent
    opened: list[Path] = []
    real_resolve = Path.resolve

    def resolve(path: Path, strict: bool = False) -> Path:
        found = real_resolve(path, strict)
        opened.append(found)
        if len(opened) == 1:
            promoted.switch_to(2)
        return found

    monkeypatch.setattr(Path, "resolve", resolve)
    dataset = QHDataset([root / "train", root / "val"])
    assert {Path(pin.location).parent.name for pin in dataset.source.pins} == {"v000002"}


def test_ranks_with_other_versions_differ_without_a_group(promoted: Promoted) -> None:
    early = QHIterableDataset(promoted.train, 4, rank=0, world_size=2)
    promoted.switch_to(2)
    late = QHIterableDataset(promoted.train, 4, rank=1, world_size=2)
    assert early.versions != late.versions
    with refused(StoreError, "total"):
        late.load_state_dict(early.state_dict())
    with refused(StoreError, "torch.distributed", "'versions'"):
        late.check_ranks()


Rank = Callable[[int, Path, Path], str]


def in_process_group(rank: int, folder: Path, stores: Path, work: Rank, answers: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    try:
        answers.put((rank, work(rank, folder, stores)))
    except Exception as error:
        answers.put((rank, f"{type(error).__name__}: {error}"))
    finally:
        dist.destroy_process_group()


def two_ranks(tmp_path: Path, stores: Path, work: Rank) -> list[str]:
    """What each of two real ranks said."""
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    folder = tmp_path / work.__name__
    folder.mkdir()
    arguments = (folder, stores, work, answers)
    processes = [context.Process(target=in_process_group, args=(rank, *arguments)) for rank in range(2)]
    for process in processes:
        process.start()
    said = dict(answers.get(timeout=PATIENCE_S) for _ in processes)
    for process in processes:
        process.join()
    return [said[0], said[1]]


def other_versions(rank: int, _: Path, store: Path) -> str:
    return str(epoch(loader(store.parents[1] / f"v{rank + 1:06d}" / "train", rank=rank, world_size=2)))


def same_rank_twice(_: int, __: Path, store: Path) -> str:
    return str(epoch(loader(store, rank=0, world_size=2)))


def one_version(rank: int, _: Path, store: Path) -> str:
    QHDataset(store).check_ranks()
    return str(epoch(loader(store, 1, rank=rank, world_size=2)))


def test_ranks_of_a_process_group_find_out(promoted: Promoted, tmp_path: Path) -> None:
    for said in two_ranks(tmp_path, promoted.version(1), other_versions):
        assert said.startswith("StoreError: ranks disagree on "), said
    for said in two_ranks(tmp_path, promoted.version(1), same_rank_twice):
        assert said == "StoreError: every process needs its own rank from 0 to 1, got [0, 0]"
    expected = [str(epoch(loader(promoted.version(1), rank=rank, world_size=2))) for rank in range(2)]
    assert two_ranks(tmp_path, promoted.version(1), one_version) == expected
