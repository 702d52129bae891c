from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_assets.config import RolloutRecipeConfig
from rollout_assets.rollouts.engine import Chain, expand
from rollout_assets.rollouts.keys import RolloutKey
from rollout_assets.rollouts.recipes import branch_schedule_id, largest_branch
from rollout_assets.rollouts.trace import NOT_SELECTED
from tests.rollouts.shells import DrawnStates

pytestmark = pytest.mark.quick

KEY = RolloutKey(seed=3, sample_key="scene/snippet", target_id="t")


def run(recipe: RolloutRecipeConfig, states: DrawnStates) -> tuple[Chain, ...]:
    rollout = expand(recipe, states.key)
    try:
        paths = next(rollout)
        while True:
            paths = rollout.send({path: states(path) for path in paths})
    except StopIteration as stop:
        return stop.value


def greedy(**changes) -> RolloutRecipeConfig:
    return RolloutRecipeConfig(**({"name": "r", "policy": "oracle_greedy"} | changes))


def test_a_greedy_chain_takes_the_best_view_at_every_step():
    (chain,) = run(greedy(horizon=4), DrawnStates(KEY))
    assert len(chain.steps) == 4 and chain.termination(4) == "fixed_horizon"
    for step in chain.steps:
        assert step.selected_shell_index == np.nanargmax(step.state.scores)
    assert chain.summed_score == pytest.approx(sum(s.state.scores[s.selected_shell_index] for s in chain.steps))


def test_each_state_is_the_one_its_chain_walked_to():
    for chain in run(greedy(horizon=3, branch=2), DrawnStates(KEY)):
        for before, after in pairwise(chain.steps):
            chosen = before.state.shell.pose_world_camera[before.selected_shell_index]
            assert np.array_equal(after.state.pose_world_camera, chosen)


def leaves_kept(states: DrawnStates, horizon: int, branch: int, beam: int) -> list[tuple[tuple[int, ...], bool]]:
    """The obvious twin: at every depth list all leaves of the kept chains with their sums, sort, keep ``beam``."""
    kept: list[tuple[float, tuple[int, ...], bool]] = [(0.0, (), False)]
    for _ in range(horizon):
        leaves = []
        for total, path, dead in kept:
            scores = states(path).scores
            best = [] if dead else [i for i in np.argsort(-scores) if np.isfinite(scores[i])][:branch]
            leaves += [(total + float(scores[i]), (*path, int(i)), False) for i in best] or [(total, path, True)]
        kept = sorted(leaves, key=lambda leaf: -leaf[0])[:beam]
    return [(path, dead) for _, path, dead in kept]


@given(st.integers(0, 500), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3))
def test_the_beam_keeps_the_best_sums_of_all_its_leaves(seed, horizon, branch, beam):
    key = RolloutKey(seed, "s", "t")
    last = run(greedy(horizon=horizon, branch=branch, beam_width=beam), DrawnStates(key))
    assert 1 <= len(last) <= beam
    sums = [chain.summed_score for chain in last]
    assert sums == sorted(sums, reverse=True)
    assert [(chain.path, chain.dead_end) for chain in last] == leaves_kept(DrawnStates(key), horizon, branch, beam)


@pytest.mark.parametrize(("branch", "counts"), [(2, [2, 4, 8]), ((3, 1), [3, 3, 3]), ((1, 2), [1, 2, 4])])
def test_schedules_repeat_their_last_entry(branch, counts):
    states = DrawnStates(KEY, takeable_share=1.0)
    assert [len(run(greedy(horizon=h, branch=branch), states)) for h in (1, 2, 3)] == counts


def test_stochastic_branching_follows_seed_and_probabilities():
    recipe = greedy(horizon=1, branch={"counts": [1, 3], "probabilities": [0.25, 0.75]})
    counts = [len(run(recipe, DrawnStates(RolloutKey(seed, "s", "t"), takeable_share=1.0))) for seed in range(800)]
    again = [len(run(recipe, DrawnStates(RolloutKey(seed, "s", "t"), takeable_share=1.0))) for seed in range(800)]
    assert counts == again and set(counts) == {1, 3}
    assert np.mean(np.array(counts) == 3) == pytest.approx(0.75, abs=0.05)


def test_a_dead_end_keeps_its_shell_and_ends_the_chain():
    first = run(greedy(horizon=1), DrawnStates(KEY))[0].path
    (chain,) = run(greedy(horizon=3), DrawnStates(KEY, dead=first))
    assert len(chain.steps) == 2 and chain.termination(3) == "terminated_early"
    assert chain.steps[1].selected_shell_index == NOT_SELECTED
    assert len(chain.steps[1].state.shell) == 8
    assert chain.path == first


def test_a_dead_end_stays_in_the_beam_while_its_sum_is_good():
    best = run(greedy(horizon=1), DrawnStates(KEY))[0].path
    chains = run(greedy(horizon=2, branch=2, beam_width=4), DrawnStates(KEY, dead=best))
    assert [chain.path for chain in chains if chain.dead_end] == [best]
    assert any(chain.termination(2) == "fixed_horizon" for chain in chains)


def test_recipes_that_reach_the_same_state_see_the_same_shell():
    one = run(greedy(name="a"), DrawnStates(KEY))[0]
    other = run(greedy(name="b", branch=2, beam_width=2), DrawnStates(KEY))
    assert np.array_equal(one.steps[0].state.shell.pose_world_camera, other[0].steps[0].state.shell.pose_world_camera)


def test_selection_differs_by_recipe_seed_target_and_path():
    recipes = [RolloutRecipeConfig(name=name, policy="random_valid", horizon=3) for name in ("a", "b")]
    keys = [KEY, RolloutKey(4, "scene/snippet", "t"), RolloutKey(3, "other", "t"), RolloutKey(3, "scene/snippet", "u")]
    digests = {key.selection_digest(recipe, path) for key in keys for recipe in recipes for path in ((), (1,), (1, 2))}
    assert len(digests) == 4 * 2 * 3
    paths = {run(recipe, DrawnStates(key, k=40))[0].path for key in keys for recipe in recipes}
    assert len(paths) == 8


def test_branch_names_are_readable():
    assert branch_schedule_id(greedy(branch=2)) == "constant:2"
    assert branch_schedule_id(greedy(branch=[3, 1])) == "schedule:3,1"
    stochastic = greedy(branch={"counts": [1, 4], "probabilities": [0.5, 0.5]})
    assert branch_schedule_id(stochastic) == "stochastic:1@0.5,4@0.5"
    assert [largest_branch(r) for r in (greedy(branch=2), greedy(branch=[3, 1]), stochastic)] == [2, 3, 4]
