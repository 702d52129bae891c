"""What an evaluator keeps is bounded by bytes, however many states pass through it."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_assets.config import CampaignConfig, CandidateConfig, MixtureComponent
from rollout_assets.rollouts.evaluation import StateEvaluator, StateRequest
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.roots import TargetedRoot
from rollout_assets.sources.vin_store import VinOfflineStore

CAMPAIGN = CampaignConfig(
    name="kept",
    seed=3,
    oracle={"device": "cpu", "width_px": 16, "height_px": 16},
    candidates=CandidateConfig(mixture=(MixtureComponent(position="target_bearing_local", count=6),)),
)


@pytest.fixture(scope="module")
def root(small_store) -> tuple[RolloutGenerator, TargetedRoot]:
    store = VinOfflineStore.open(small_store)
    generator = RolloutGenerator(CAMPAIGN, store)
    roots = [root for row in store.rows() for root in generator.prepare(row).roots]
    return generator, roots[0]


@pytest.mark.parametrize("kept_bytes", [200_000, 2_000_000])
def test_states_are_kept_by_bytes(root, kept_bytes: int) -> None:
    generator, targeted = root
    evaluator = StateEvaluator(CAMPAIGN, generator.scorer, kept_states=10_000, kept_bytes=kept_bytes)
    for seed in range(40):
        (first,) = evaluator.evaluate([StateRequest(targeted, seed, ())])
        takeable = np.flatnonzero(first.shell.actor_action_mask)[:2]
        evaluator.evaluate([StateRequest(targeted, seed, (int(index),)) for index in takeable])
        held = sum(node.own_bytes for node in evaluator._nodes.values())
        assert held <= evaluator._nodes.currsize <= kept_bytes
    assert 0 < len(evaluator._nodes) < 80


def test_a_state_that_was_forgotten_comes_back_the_same(root) -> None:
    generator, targeted = root
    wide, narrow = (StateEvaluator(CAMPAIGN, generator.scorer, kept_bytes=kept) for kept in (1 << 30, 1))
    request = StateRequest(targeted, 1, ())
    kept, forgotten = wide.evaluate([request])[0], narrow.evaluate([request])[0]
    index = int(np.flatnonzero(kept.shell.actor_action_mask)[0])
    following = StateRequest(targeted, 1, (index,))
    assert len(narrow._nodes) == 0
    a, b = wide.evaluate([following])[0], narrow.evaluate([following])[0]
    assert np.array_equal(a.labels.target_rri, b.labels.target_rri, equal_nan=True)
    assert np.array_equal(kept.labels.target_rri, forgotten.labels.target_rri, equal_nan=True)
