"""The Gymnasium environment: its interface, its order of roots, and the labels of stored rollouts to the bit."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.utils.env_checker import check_env

import rollout_assets.learning.environment
from rollout_assets.config.observation import ObservationConfig
from rollout_assets.errors import ConfigError, RowRefused, SourceError, SourceRowMissing
from rollout_assets.learning.environment import (
    ENVIRONMENT_ID,
    EnvironmentConfig,
    EnvironmentOptions,
    NextBestViewEnv,
    as_observations,
)
from rollout_assets.learning.observed_states import ObservedStates
from rollout_assets.observations.observation import Observations
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader, schema
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.testing.tiny_campaign import write_tiny_campaign
from tests.support.refusals import refused

pytestmark = pytest.mark.ci

SMALL = ObservationConfig(points=64, history=2, depth_px=8)


def played(env: NextBestViewEnv, actions: list[int]) -> list[tuple[float, bool, dict[str, Any]]]:
    """Reward, end and info of every action."""
    steps = [env.step(action) for action in actions]
    return [(reward, terminated, info) for _, reward, terminated, _, info in steps]


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two observations are equal to the bit."""
    return (
        all(a[name].dtype == b[name].dtype and np.array_equal(a[name], b[name]) for name in a) and a.keys() == b.keys()
    )


@pytest.mark.parametrize("options", [{}, {"fresh_views": True}])
def test_gymnasiums_checker_passes_without_a_warning(played_campaign, options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(ENVIRONMENT_ID, campaign=played_campaign, observation=SMALL, **options)
        check_env(env.unwrapped)
    assert env.observation_space.keys() == {*Observations.__dataclass_fields__}


def test_importing_the_package_registers_the_environment(small_store, tmp_path, monkeypatch):
    monkeypatch.delitem(gymnasium.registry, ENVIRONMENT_ID)
    with pytest.raises(gymnasium.error.NamespaceNotFound):
        gymnasium.make(ENVIRONMENT_ID)
    importlib.reload(rollout_assets.learning.environment)
    env = gymnasium.make(ENVIRONMENT_ID, campaign=str(write_tiny_campaign(tmp_path, small_store)), horizon=1)
    _, info = env.reset(seed=3)
    _, _, terminated, truncated, _ = env.step(env.action_space.sample(info["action_mask"]))
    assert terminated and not truncated


def test_actions_of_stored_rollouts_give_their_labels_to_the_bit(observed_campaign, observed_store):
    reader = RolloutZarrStoreReader(observed_store)
    source = VinOfflineStore.open(observed_campaign.source.store_dir)
    stored = ObservedStates(reader, source, SMALL)
    env = NextBestViewEnv(observed_campaign, observation=SMALL)
    steps = {name: reader.array(schema.STEPS.path(name)) for name in ("rollout_row_id", "selected_shell_index")}
    compared = 0
    for row in range(reader.num_rows("rollouts")):
        lineage = reader.rollout(row).lineage
        rows = np.flatnonzero((steps["rollout_row_id"] == row) & (steps["selected_shell_index"] >= 0))
        if not len(rows):
            continue
        observation, info = env.reset(options={"root": (lineage.source_sample_key, lineage.target_id)})
        assert lineage.rollout_id.startswith(info["rollout_id_prefix"]) and info["seed"] == lineage.random_seed
        for step_row in rows:
            assert same(as_observations(observation).arrays(), stored.observations([step_row]).arrays())
            selected = int(steps["selected_shell_index"][step_row])
            observation, reward, *_ = env.step(selected)
            label = reader.step(int(step_row)).step.labels.target_root_gain[selected]
            assert np.float32(reward).tobytes() == label.tobytes()
            compared += 1
    assert compared > 20


def test_a_seed_gives_the_same_episodes_to_the_bit(played_campaign):
    def run(env: NextBestViewEnv) -> list[dict[str, Any]]:
        shown = []
        for episode in range(3):
            observation, info = env.reset(seed=7 if episode == 0 else None)
            while info["action_mask"].any():
                shown.append(observation)
                observation, *_, info = env.step(int(np.flatnonzero(info["action_mask"])[-1]))
            shown.append(observation)
        return shown

    env = NextBestViewEnv(played_campaign, observation=SMALL)
    first, again, anew = (
        run(env),
        run(env),
        run(NextBestViewEnv(played_campaign, observation=SMALL, kept_rows=1, kept_states=16)),
    )
    assert len(first) == len(again) == len(anew)
    assert all(same(a, b) and same(a, c) for a, b, c in zip(first, again, anew, strict=True))


def test_every_root_comes_once_per_epoch_in_an_order_of_its_own(played_campaign, small_store):
    source = VinOfflineStore.open(small_store)
    generator = RolloutGenerator(played_campaign, source)
    rows = [row for split in played_campaign.source.splits for row in source.rows(split)]
    expected = {(row.sample_key, root.match.target.target_id) for row in rows for root in generator.prepare(row).roots}
    env = NextBestViewEnv(played_campaign, observation=SMALL, rows_per_window=2)
    orders = []
    for seed in (1, 2):
        infos = [env.reset(seed=seed)[1]] + [env.reset()[1] for _ in range(2 * len(expected) - 1)]
        names = [(info["sample_key"], info["target_id"]) for info in infos]
        epochs = names[: len(expected)], names[len(expected) :]
        assert set(epochs[0]) == set(epochs[1]) == expected
        orders += epochs
    assert len({tuple(order) for order in orders}) > 1


def test_fresh_views_differ_by_episode_and_stored_ones_do_not(played_campaign):
    def two_starts(**options: Any) -> list[dict[str, Any]]:
        env = NextBestViewEnv(played_campaign, observation=SMALL, **options)
        return [env.reset(seed=seed, options={"root": (0, 0)})[0] for seed in (1, 2)]

    assert same(*two_starts())
    assert not same(*two_starts(fresh_views=True))


def test_the_horizon_ends_an_episode_and_is_no_truncation(played_campaign):
    env = NextBestViewEnv(played_campaign, observation=SMALL, horizon=3, seed=0)
    observation, info = env.reset()
    for left in (3, 2, 1):
        assert observation["steps_left"] == left and not info["untakeable"]
        action = int(np.flatnonzero(env.action_masks())[0])
        observation, _, terminated, truncated, info = env.step(action)
        assert not truncated
        if terminated:
            break
    assert terminated and not env.action_masks().any() and not observation["candidate_mask"].any()
    with refused(ResetNeeded, "reset()"):
        env.step(0)


def test_an_untakeable_view_costs_a_step_and_gains_nothing(played_campaign):
    env = NextBestViewEnv(played_campaign, observation=SMALL, horizon=2)
    for _ in range(20):
        _, info = env.reset()
        if not info["action_mask"].all():
            break
    (reward, terminated, after_info), *_ = played(env, [int(np.flatnonzero(info["action_mask"] == 0)[0])])
    assert (reward, terminated, after_info["untakeable"], after_info["path"]) == (0.0, False, True, ())
    takeable = int(np.flatnonzero(after_info["action_mask"])[0])
    assert np.array_equal(after_info["action_mask"], info["action_mask"])
    *_, (_, terminated, last) = played(env, [takeable])
    assert terminated and last["path"] == (takeable,) and not last["untakeable"]


def test_labels_are_shown_only_when_asked_for(played_campaign):
    _, info = NextBestViewEnv(played_campaign, observation=SMALL).reset(options={"root": (0, 0)})
    assert not any("gain" in name or "rri" in name for name in info)
    env = NextBestViewEnv(played_campaign, observation=SMALL, oracle_info=True)
    _, info = env.reset(options={"root": (0, 0)})
    best = int(np.nanargmax(info["target_root_gain"]))
    assert env.step(best)[1] == info["target_root_gain"][best]


def test_what_cannot_be_played_is_said_in_one_line(played_campaign):
    env = NextBestViewEnv(played_campaign, observation=SMALL)
    with pytest.raises(ResetNeeded):
        env.step(0)
    env.reset(seed=0)
    for wrong in (8, -1, 0.5, "first"):
        with refused(InvalidAction, wrong):
            env.step(wrong)
    for options, field, names in [
        ({"root": (0, 99)}, "root", ["target 99", "idx=0", "idx=1"]),
        ({"root": 3}, "options", ["(row, target)", 3]),
        ({"rot": (0, 0)}, "options", ["(row, target)"]),
    ]:
        with refused(RowRefused, *names, field=field):
            env.reset(options=options)
    with refused(ConfigError, "horizont"):
        NextBestViewEnv(played_campaign, horizont=3)
    with refused(ConfigError, "horizon: ", 0):
        NextBestViewEnv(played_campaign, horizon=0)
    with refused(SourceRowMissing, "split", "'test'"):
        NextBestViewEnv(played_campaign, split="test")
    with refused(SourceError, "val"):
        NextBestViewEnv(played_campaign, split="val", rows=[0])


def test_keywords_and_their_model_agree():
    assert EnvironmentOptions.__optional_keys__ == EnvironmentConfig.model_fields.keys()
