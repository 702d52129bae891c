"""Episodes: one root played view by view. What all members of an environment need next is evaluated together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.config import CampaignConfig
from rollout_assets.errors import RowRefused, SourceError
from rollout_assets.learning.environment.layout import as_arrays
from rollout_assets.learning.environment.options import EnvironmentConfig
from rollout_assets.learning.environment.roots import RootLoader, RootName, shuffled_roots
from rollout_assets.observations.observation import Arrays
from rollout_assets.oracle.scorer import OracleScorer
from rollout_assets.rollouts.engine import EvaluatedState
from rollout_assets.rollouts.evaluation import StateEvaluator, StateRequest
from rollout_assets.rollouts.keys import ShellPath
from rollout_assets.rollouts.observing import StateObserver
from rollout_assets.rollouts.roots import TargetedRoot
from rollout_assets.rollouts.trace import rollout_id_prefix


@dataclass(frozen=True, eq=False)
class Episode:
    """Where an episode stands. ``seed`` decides the views offered, ``path`` are the shell indices of those taken.

    ``state`` is None while it is not evaluated, and for good when no steps are left: nothing is offered then.
    """

    root: TargetedRoot
    seed: int
    steps_left: int
    path: ShellPath = ()
    state: EvaluatedState | None = None

    @property
    def request(self) -> StateRequest:
        """The state to evaluate."""
        return StateRequest(self.root, self.seed, self.path)

    @property
    def takeable(self) -> NDArray[np.bool_] | None:
        """(k,) which views can be taken; None where nothing is offered."""
        return None if self.state is None else self.state.shell.actor_action_mask

    @property
    def ended(self) -> bool:
        """No view can be taken any more: no steps are left, or the actor is in a dead end."""
        return self.takeable is None or not self.takeable.any()

    def can_take(self, action: int) -> bool:
        """Whether the view of this shell index can be taken."""
        return self.takeable is not None and bool(self.takeable[action])

    def gain_of(self, action: int) -> float:
        """The target root gain of a view, as stored; 0 for one that cannot be taken."""
        return float(self.gains[action]) if self.can_take(action) else 0.0

    @property
    def gains(self) -> NDArray[np.float32]:
        """(k,) target root gains; NaN where a view cannot be taken."""
        assert self.state is not None, "an episode without steps left offers nothing"
        return self.state.labels.target_root_gain

    def after(self, action: int) -> Episode:
        """The episode after one step, not evaluated yet; a view that cannot be taken leaves the actor where it is."""
        if self.can_take(action):
            return Episode(self.root, self.seed, self.steps_left - 1, (*self.path, action))
        return replace(self, steps_left=self.steps_left - 1, state=None)

    def identity(self) -> dict[str, Any]:
        """What finds this state in a store: its root, the seed of its views, and the views taken so far.

        Ids of stored rollouts of this root begin with ``rollout_id_prefix``, if the seed is the campaign's.
        """
        row, target = self.root.actor.identity, self.root.match.target
        return {
            "sample_index": row.sample_index,
            "sample_key": row.sample_key,
            "scene_id": row.scene_id,
            "snippet_id": row.snippet_id,
            "split": row.split,
            "target_id": target.target_id,
            "target_rank": target.draw.rank,
            "rollout_id_prefix": rollout_id_prefix(row.sample_index, target.draw.rank, ""),
            "seed": self.seed,
            "path": self.path,
        }


class EpisodePlayer:
    """Begins, evaluates and observes episodes of a campaign; those that are handed in together share device launches.

    A root at which no view can be taken begins no episode.
    """

    def __init__(self, campaign: CampaignConfig, config: EnvironmentConfig) -> None:
        self.campaign, self.config = campaign, config
        self.loader = RootLoader(campaign, config)
        self.views = campaign.candidates.num_candidates
        self.horizon = config.horizon or max(recipe.horizon for recipe in campaign.recipes)
        self.evaluator = StateEvaluator(campaign, OracleScorer(campaign.oracle), config.kept_states)
        self._observer = StateObserver(self.evaluator, config.observation, config.kept_states)
        self._rng = np.random.default_rng(0)
        self._order: Iterator[TargetedRoot] | None = None

    @property
    def shuffled(self) -> bool:
        """Whether there is an order of roots already."""
        return self._order is not None

    def first_seed(self, seed: int | None) -> int | None:
        """The seed of a reset, which is the configured one if the first reset brings none."""
        return self.config.seed if seed is None and not self.shuffled else seed

    def shuffle(self, rng: np.random.Generator) -> None:
        """Begin a new epoch whose order, and whose seeds of fresh views, only ``rng`` decides."""
        self._rng = rng
        self._order = shuffled_roots(self.loader, self.config.rows_per_window, rng)

    def deal(self) -> Episode:
        """An episode on the next root, not evaluated yet."""
        assert self._order is not None, "shuffle() comes first"
        return self._begin(next(self._order))

    def begin(self, count: int) -> list[Episode]:
        """Evaluated episodes on the next roots that have a view to take."""
        return self.playable([self.deal() for _ in range(count)])

    def begin_at(self, names: Sequence[RootName]) -> list[Episode]:
        """Evaluated episodes on these roots; a root at which no view can be taken is refused."""
        episodes = self.evaluated([self._begin(self.loader.named(name)) for name in names])
        for name, episode in zip(names, episodes, strict=True):
            if episode.ended:
                raise RowRefused("root", f"no view can be taken at root {name!r}; choose another one")
        return episodes

    def evaluated(self, episodes: Sequence[Episode]) -> list[Episode]:
        """The episodes with their states; those without steps left stay as they are."""
        waiting = [episode for episode in episodes if episode.state is None and episode.steps_left]
        states = iter(self.evaluator.evaluate([episode.request for episode in waiting]))
        needs = {id(episode) for episode in waiting}
        return [replace(episode, state=next(states)) if id(episode) in needs else episode for episode in episodes]

    def playable(self, dealt: Sequence[Episode]) -> list[Episode]:
        """Episodes that were just dealt, evaluated; others take the place of those that are dead ends already."""
        episodes, dead = self.evaluated(dealt), set[str]()
        while stuck := [place for place, episode in enumerate(episodes) if episode.ended]:
            for place in stuck:
                self._note_dead_end(episodes[place].root, dead)
                episodes[place] = self.deal()
            episodes = self.evaluated(episodes)
        return episodes

    def observe(self, episodes: Sequence[Episode]) -> dict[str, Arrays]:
        """What the actors know, in one call, as a vector environment gives it."""
        requests, left = [episode.request for episode in episodes], [episode.steps_left for episode in episodes]
        return as_arrays(self._observer.observe(requests, left, [episode.state for episode in episodes]))

    def info(self, episode: Episode, untakeable: bool = False) -> dict[str, Any]:
        """Which state this is, which views can be taken (int8, as spaces draw with), and their gains if asked for.

        ``untakeable`` says that the last action could not be taken.
        """
        takeable = np.zeros(self.views, np.int8) if episode.takeable is None else episode.takeable.astype(np.int8)
        info = episode.identity() | {"action_mask": takeable, "untakeable": untakeable}
        if self.config.oracle_info:
            info["target_root_gain"] = np.full(self.views, np.nan, np.float32)
            if episode.state is not None:
                info["target_root_gain"] = episode.gains.copy()
        return info

    def _begin(self, root: TargetedRoot) -> Episode:
        seed = int(self._rng.integers(2**31)) if self.config.fresh_views else self.campaign.seed
        return Episode(root, seed, self.horizon)

    def _note_dead_end(self, root: TargetedRoot, dead: set[str]) -> None:
        if root.name in dead:
            raise SourceError(f"{self.loader.store.location}: no view can be taken at any root; check [candidates]")
        dead.add(root.name)
