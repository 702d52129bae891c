"""Killed at every named step and at random moments, a build or a promotion is finished by the next run alone.

After each kill nothing half is visible as complete; at the end the content digests equal those of an undisturbed run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from rollout_assets.campaigns.layout import STORE_NAME, CampaignLayout
from rollout_assets.campaigns.plan import write_rollout_shard_manifest_from_config
from rollout_assets.campaigns.plan_entry import RolloutShardEntry
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.shard import run_rollout_shard, shard_problems
from rollout_assets.campaigns.status import shard_status
from rollout_assets.campaigns.versions import current_name
from rollout_assets.rollouts.zarr_store import validate_rollout_zarr_store
from tests.campaigns.kill_campaigns import fake_campaign, real
from tests.support.digests import store_digests
from tests.support.waiting import PATIENCE_S

REPOSITORY = Path(__file__).resolve().parents[2]
KILLS_PER_FINISH = 8
KEPT_FLUSHES = ("flush/sources", "flush/candidates", "flush/q_h")


class Zygote:
    """Talks to the process that forks victims."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.campaigns.kill_zygote"]
        self._process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request, default=str) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(timeout=PATIENCE_S) == 0


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """In memory where there is such a place: what SIGKILL leaves does not depend on the disk, but the wait does."""
    place = Path("/dev/shm")
    with TemporaryDirectory(dir=place if os.access(place, os.W_OK) else None, prefix="killed-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    started = Zygote()
    yield started
    started.close()


Moment = tuple[str | None, int, float | None]
"""A step and which of its calls, or a delay in seconds."""


def moments_of(steps: Sequence[str]) -> list[Moment]:
    """The first and, of every third step that comes again, the last call."""
    calls = Counter(steps)
    again = [step for step, count in calls.items() if count > 1][::3]
    return [*((step, 0, None) for step in calls), *((step, calls[step] - 1, None) for step in again)]


def fewer_flushes(steps: Sequence[str]) -> list[str]:
    """A store flushes the same way wherever it is written: three tables stand for all of them."""
    return [step for step in steps if not step.startswith("flush/") or step in KEPT_FLUSHES]


def shuffled(moments: Sequence[Moment], seed: int) -> list[Moment]:
    return [moments[index] for index in np.random.default_rng(seed).permutation(len(moments))]


def delays(victim: ShardVictim | PromotionVictim, count: int, seed: int) -> list[Moment]:
    """Moments spread over the time that an undisturbed attempt takes here and now."""
    longest = 0.8 * victim.seconds_undisturbed()
    return [(None, 0, float(delay)) for delay in np.random.default_rng(seed).uniform(0.0, longest, count)]


@dataclass
class ShardVictim:
    """One shard of a campaign: what to ask for, and what must hold afterwards."""

    zygote: Zygote
    layout: CampaignLayout
    config: Any
    entry: RolloutShardEntry
    source: Any
    request: dict[str, Any]
    expected: dict[str, str]
    finish: Callable[[], Any]

    def kill(self, moment: Moment) -> bool:
        step, nth, delay = moment
        answer = self.zygote.ask(**self.request, step=step, nth=nth, delay=delay)
        final = self.layout.shard(self.entry.shard_id)
        complete = not shard_problems(final, self.entry, self.source, deep=True)
        state = shard_status(self.config, self.layout, self.entry).state
        assert (state == "succeeded") == complete
        if complete:
            assert store_digests(final / STORE_NAME) == self.expected
            shutil.rmtree(final)  # so that the next attempt has something to do
        return answer["killed"]

    def seconds_undisturbed(self) -> float:
        answer = self.zygote.ask(**self.request)
        assert answer["ok"]
        shutil.rmtree(self.layout.shard(self.entry.shard_id))
        return answer["seconds"]

    def check_finished(self) -> None:
        self.finish()
        final = self.layout.shard(self.entry.shard_id)
        assert shard_problems(final, self.entry, self.source, deep=True) == []
        assert store_digests(final / STORE_NAME) == self.expected
        assert list(self.layout.staging.iterdir()) == []
        shutil.rmtree(final)


def _kill(victim: ShardVictim | PromotionVictim, moment: Moment) -> None:
    """Kill at a moment. An attempt that was done before its delay was over is made again with half the delay."""
    step, nth, delay = moment
    while not victim.kill((step, nth, delay)):
        assert delay, f"{moment} was never reached"
        delay = delay * 0.5 if delay > 1e-6 else 0.0


def run_kills(victim: ShardVictim | PromotionVictim, moments: Sequence[Moment], at_least: int = 1) -> None:
    """Kill at every one of ``at_least`` so many moments, and let a run finish after every few."""
    assert len(moments) >= at_least
    for start in range(0, len(moments), KILLS_PER_FINISH):
        for moment in moments[start : start + KILLS_PER_FINISH]:
            _kill(victim, moment)
        victim.check_finished()


@pytest.fixture(scope="module")
def fake_victim(zygote: Zygote, folder: Path) -> tuple[ShardVictim, list[str]]:
    root = folder / "made-up"
    quiet = fake_campaign(root / "quiet")
    steps: list[str] = []
    entry = quiet.plan().entries[1]
    expected = store_digests(quiet.run(entry, steps.append).shard_dir / STORE_NAME)
    campaign = fake_campaign(root / "killed")
    entry = campaign.plan().entries[1]
    victim = ShardVictim(
        zygote,
        CampaignLayout.of(campaign.config),
        campaign.config,
        entry,
        campaign.source,
        {"kind": "shard", "root": root / "killed", "shard": entry.shard_id},
        expected,
        lambda: campaign.run(entry),
    )
    return victim, steps


@pytest.mark.ci
def test_a_shard_killed_at_each_step_is_built_by_the_next_run(fake_victim):
    victim, steps = fake_victim
    for name in ("temp", "manifest", "owner", "fsync", "rename", "success"):
        assert {f"{name}/before", f"{name}/after"} <= set(steps)
    assert {"flush/candidates", "flush/steps", "flush/q_h", "flush/selected_depth"} <= set(steps)
    run_kills(victim, shuffled(moments_of(steps), seed=1), at_least=25)


@pytest.mark.ci
def test_a_shard_killed_at_random_is_built_by_the_next_run(fake_victim):
    victim, _ = fake_victim
    run_kills(victim, delays(victim, 10, seed=2))


@pytest.fixture(scope="module")
def real_victim(zygote: Zygote, small_store: Path, folder: Path) -> tuple[ShardVictim, list[str]]:
    root = folder / "real"
    quiet = real(root / "quiet", small_store)
    steps: list[str] = []
    entry = write_rollout_shard_manifest_from_config(quiet).entries[0]
    expected = store_digests(run_rollout_shard(quiet, entry, on_step=steps.append).shard_dir / STORE_NAME)
    config = real(root / "killed", small_store)
    entry = write_rollout_shard_manifest_from_config(config).entries[0]
    victim = ShardVictim(
        zygote,
        CampaignLayout.of(config),
        config,
        entry,
        None,
        {"kind": "real", "root": root / "killed", "source": small_store, "shard": entry.shard_id},
        expected,
        lambda: run_rollout_shard(config, entry),
    )
    return victim, steps


@pytest.mark.slow
def test_a_shard_with_the_real_oracle_is_built_by_the_next_run(real_victim):
    victim, steps = real_victim
    run_kills(victim, shuffled(moments_of(steps), seed=3)[:8], at_least=8)
    run_kills(victim, delays(victim, 4, seed=4))


@dataclass
class PromotionVictim:
    """A campaign whose shards are finished; ``before`` is what is promoted when an attempt starts, if anything."""

    zygote: Zygote
    config: Any
    before: dict[str, dict[str, str]] | None
    after: dict[str, dict[str, str]]

    @property
    def layout(self) -> CampaignLayout:
        return CampaignLayout.of(self.config)

    def visible(self) -> dict[str, dict[str, str]] | None:
        if current_name(self.layout) is None:
            return None
        return {child.name: store_digests(child) for child in sorted(self.layout.promoted.iterdir()) if child.is_dir()}

    def reset(self) -> None:
        """Back to what was promoted before."""
        first = "v000001" if self.before is not None else None
        for version in self.layout.versions.glob("v*"):
            if version.name != first:
                shutil.rmtree(version)
        self.layout.promoted.unlink(missing_ok=True)
        if first is not None:
            self.layout.promoted.symlink_to(f"versions/{first}", target_is_directory=True)

    def kill(self, moment: Moment) -> bool:
        step, nth, delay = moment
        root = self.config.shards.output_dir
        answer = self.zygote.ask(kind="promotion", root=root, step=step, nth=nth, delay=delay)
        assert self.visible() in (self.before, self.after)
        for version in self.layout.versions.glob("v*"):
            assert {path.name for path in version.iterdir() if path.is_dir()} == set(self.after)
        if len(list(self.layout.versions.glob("v*"))) > (self.before is not None):
            self.reset()
        return answer["killed"]

    def seconds_undisturbed(self) -> float:
        answer = self.zygote.ask(kind="promotion", root=self.config.shards.output_dir)
        assert answer["ok"]
        self.reset()
        return answer["seconds"]

    def check_finished(self) -> None:
        promote_rollout_campaign(self.config)
        assert self.visible() == self.after
        assert list(self.layout.staging.iterdir()) == []
        for split in self.after:
            assert validate_rollout_zarr_store(self.layout.promoted / split, deep=True).errors == []
        self.reset()


def promotion_victim(zygote: Zygote, root: Path, grown: bool) -> tuple[PromotionVictim, list[str]]:
    """From nothing, or, ``grown``, after one more train row came to what is promoted already."""
    quiet, campaign = fake_campaign(root / "quiet"), fake_campaign(root / "killed")
    before = None
    for one in (quiet, campaign):
        one.run_all()
        if grown:
            promote_rollout_campaign(one.config)
    if grown:
        before = PromotionVictim(zygote, campaign.config, None, {}).visible()
        quiet, campaign = (grow(root / "quiet"), grow(root / "killed"))
    steps: list[str] = []
    promote_rollout_campaign(quiet.config, incremental=False)
    after = PromotionVictim(zygote, quiet.config, None, {}).visible()
    assert after is not None
    shutil.copytree(root / "killed", root / "dry", symlinks=True)
    dry = fake_campaign(root / "dry")
    promote_rollout_campaign(dry.config, on_step=steps.append)
    return PromotionVictim(zygote, campaign.config, before, after), steps


def grow(root: Path) -> Any:
    """The same campaign with one more row, planned and built."""
    campaign = fake_campaign(root, [("train", 2), ("val", 1), ("train", 1)])
    campaign.run_all()
    return campaign


@pytest.fixture(scope="module")
def first_promotion(zygote: Zygote, folder: Path) -> tuple[PromotionVictim, list[str]]:
    return promotion_victim(zygote, folder / "first", grown=False)


@pytest.fixture(scope="module")
def next_promotion(zygote: Zygote, folder: Path) -> tuple[PromotionVictim, list[str]]:
    return promotion_victim(zygote, folder / "next", grown=True)


@pytest.mark.ci
def test_a_promotion_killed_at_each_step_is_done_by_the_next(first_promotion):
    victim, steps = first_promotion
    for name in ("temp", "manifest", "record", "fsync", "rename", "switch"):
        assert {f"{name}/before", f"{name}/after"} <= set(steps)
    run_kills(victim, shuffled(moments_of(fewer_flushes(steps)), seed=5), at_least=24)


@pytest.mark.ci
def test_an_extension_killed_at_each_step_is_done_by_the_next(next_promotion):
    victim, steps = next_promotion
    assert "train/resumed" in steps and "val/resumed" not in steps
    run_kills(victim, shuffled(moments_of(fewer_flushes(steps)), seed=6), at_least=20)


@pytest.mark.ci
def test_promotions_killed_at_random_are_done_by_the_next(first_promotion, next_promotion):
    run_kills(first_promotion[0], delays(first_promotion[0], 4, seed=7))
    run_kills(next_promotion[0], delays(next_promotion[0], 4, seed=8))


@pytest.mark.slow
def test_hundreds_more_kills_at_random_moments(fake_victim, real_victim, first_promotion, next_promotion):
    victims = (fake_victim[0], 200), (real_victim[0], 60), (first_promotion[0], 120), (next_promotion[0], 121)
    for victim, count in victims:
        run_kills(victim, delays(victim, count, seed=count))
