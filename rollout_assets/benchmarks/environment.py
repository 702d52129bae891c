"""``bench environment``: what the vector environment keeps of the engine's views per second, over the same roots."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from rollout_assets.benchmarks.measure import Steps, timed
from rollout_assets.benchmarks.results import Figure
from rollout_assets.campaigns.plan import open_source
from rollout_assets.config import CampaignConfig, RolloutRecipeConfig
from rollout_assets.errors import SourceError
from rollout_assets.geometry.devices import resolve_device
from rollout_assets.learning.environment.vector import NextBestViewVectorEnv
from rollout_assets.progress import SILENT, ProgressSink
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.roots import SceneLoader
from rollout_assets.sources.vin_store import VinOfflineStore

TURNS = 3
"""Turns of each side, one after the other, so that what else the machine does disturbs both."""


@dataclass(frozen=True)
class Pace:
    """Views scored and what they took, rows read and prepared included."""

    who: Annotated[str, Figure("who")]
    episodes: Annotated[int, Figure("episodes", "{:,}")]
    views: Annotated[int, Figure("views", "{:,}")]
    wall_s: Annotated[float, Figure("wall time", "{:.2f} s")]
    cpu_s: Annotated[float, Figure("processor time", "{:.2f} s")]

    @property
    def views_per_second(self) -> Annotated[float, Figure("views a second", "{:,.0f}")]:
        """Per second of wall time."""
        return self.views / self.wall_s


@dataclass(frozen=True)
class EnvironmentBenchmark:
    """The engine with recipe ``random_valid`` and selected depth, and the environment with random actions."""

    device: str
    rows: int
    members: Annotated[int, Figure("members of the vector environment")]
    horizon: Annotated[int, Figure("horizon")]
    engine: Pace
    environment: Pace
    turns: Annotated[tuple[Pace, ...], Figure("every turn")]

    @property
    def kept(self) -> Annotated[float, Figure("kept of the engine's views a second", "{:.0%}", ">= 70%")]:
        """Of the best turns."""
        return self.environment.views_per_second / self.engine.views_per_second

    @property
    def kept_per_cpu_second(self) -> Annotated[float, Figure("kept of its views a processor second", "{:.0%}")]:
        """Of the same turns."""
        return self.kept * (self.environment.wall_s / self.environment.cpu_s) * (self.engine.cpu_s / self.engine.wall_s)

    def __str__(self) -> str:
        return f"{self.environment.episodes} episodes on {self.rows} rows on {self.device}"


def benchmark_environment(
    config: CampaignConfig, rows: int | None = None, members: int = 16, progress: ProgressSink = SILENT
) -> EnvironmentBenchmark:
    """Play every root of the first rows once on each side, some turns; meshes are loaded before the clock runs."""
    horizon = max(recipe.horizon for recipe in config.recipes)
    recipe = RolloutRecipeConfig(name="random_valid", policy="random_valid", horizon=horizon)
    config = config.model_copy(update={"recipes": (recipe,)})
    store = open_source(config)
    chosen = [row.sample_index for split in config.source.splits for row in store.rows(split)][:rows]
    if not chosen:
        raise SourceError(f"{store.root}: no rows to measure")
    steps = Steps(progress, "measuring", 2 * TURNS)
    scenes = SceneLoader(store.meshes, config.oracle)
    _engine(config, store, scenes, chosen)  # loads meshes and kernels
    engine, environment = [], []
    for turn in range(TURNS):
        steps(f"engine, turn {turn + 1}")
        engine.append(_engine(config, store, scenes, chosen))
        steps(f"environment, turn {turn + 1}")
        environment.append(_environment(config, chosen, members, engine[-1].episodes))
    steps()
    return EnvironmentBenchmark(
        device=resolve_device(config.oracle.device),
        rows=len(chosen),
        members=members,
        horizon=horizon,
        engine=min(engine, key=lambda pace: pace.wall_s / pace.views),
        environment=min(environment, key=lambda pace: pace.wall_s / pace.views),
        turns=(*engine, *environment),
    )


def _engine(config: CampaignConfig, store: VinOfflineStore, scenes: SceneLoader, rows: list[int]) -> Pace:
    generator = RolloutGenerator(config, store, scenes=scenes)
    wall, cpu = timed(lambda: deque(generator.records([store.row(row) for row in rows]), maxlen=0))
    return Pace("engine", generator.stats.rollouts, generator.stats.views_scored, wall, cpu)


def _environment(config: CampaignConfig, rows: list[int], members: int, episodes: int) -> Pace:
    """Random actions until so many episodes have ended; fresh views, so that no state was evaluated before."""
    env = NextBestViewVectorEnv(config, members, "SameStep", rows=rows, fresh_views=True, kept_rows=len(rows))
    for row in env.player.loader.rows:
        env.player.loader.generator.scenes.find(row.scene_id)
    played = 0

    def play() -> None:
        nonlocal played
        rng = np.random.default_rng(0)
        env.reset(seed=0)
        while played < episodes:
            _, _, ended, _, _ = env.step(_random_actions(env.action_masks(), rng))
            played += int(ended.sum())

    wall, cpu = timed(play)
    return Pace("environment", played, env.player.evaluator.views_scored, wall, cpu)


def _random_actions(masks: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    """One takeable view per member, drawn evenly."""
    return np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=1)
