import asyncio
import time
from dataclasses import replace

import numpy as np
import pytest

from rollout_assets.config import RolloutRecipeConfig
from rollout_assets.errors import ConfigError, RolloutFailed
from rollout_assets.metrics.summaries import rate, summary
from rollout_assets.oracle.scorer import OracleScorer
from rollout_assets.rollouts.evaluation import StateEvaluator, StateRequest
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.manager.batching import BatchLimits, EvaluationBatcher
from rollout_assets.rollouts.manager.completions import (
    Action,
    Observation,
    RolloutGroupRecord,
    RolloutTask,
    RootView,
    derived_seed,
)
from rollout_assets.rollouts.manager.native import AsyncRolloutImpl, RolloutManager
from rollout_assets.sources.vin_store import VinOfflineStore
from tests.rollouts.record_digest import digest
from tests.rollouts.test_generation import campaign

GREEDY = RolloutRecipeConfig(name="oracle_greedy", policy="oracle_greedy")
RANDOM = RolloutRecipeConfig(name="random_valid", policy="random_valid")


@pytest.fixture(scope="module")
def generator(small_store) -> RolloutGenerator:
    return RolloutGenerator(campaign(), VinOfflineStore.open(small_store))


@pytest.fixture(scope="module")
def roots(generator):
    return [root for row in generator.store.rows() for root in generator.prepare(row).roots]


def evaluator(generator: RolloutGenerator) -> StateEvaluator:
    return StateEvaluator(generator.config, generator.scorer)


def run(impl: AsyncRolloutImpl, *managed: RolloutTask) -> list[RolloutGroupRecord]:
    async def work() -> list[RolloutGroupRecord]:
        try:
            return list(await asyncio.gather(*(impl.run_rollout(root) for root in managed)))
        finally:
            await impl.aclose()

    return asyncio.run(work())


def chains_of(groups: list[RolloutGroupRecord]) -> list[str]:
    return [digest(completion.chains) for group in groups for completion in group.completions]


def test_a_group_has_exactly_n_completions_in_index_order_with_their_seeds(generator, roots):
    (group,) = run(AsyncRolloutImpl(4, evaluator(generator)), RolloutTask(9, roots[0], RANDOM, seed=5))
    assert [completion.rollout_index for completion in group.completions] == [0, 1, 2, 3]
    assert [completion.seed for completion in group.completions] == [derived_seed(5, i) for i in range(4)]
    assert group.root_index == 9 and len({c.seed for c in group.completions}) == 4
    assert len({digest(c.chains) for c in group.completions}) == 4


def test_the_log_is_the_root_then_action_and_observation_per_step(generator, roots):
    (group,) = run(AsyncRolloutImpl(1, evaluator(generator)), RolloutTask(0, roots[0], GREEDY, seed=5))
    completion = group.completions[0]
    assert [type(entry) for entry in completion.step_log] == [RootView, Action, Observation, Action, Observation]
    assert completion.reward == pytest.approx(
        sum(e.root_gain for e in completion.step_log if isinstance(e, Observation))
    )
    known = completion.oracle_state
    assert known.error_m2 == completion.step_log[-1].error_after_m2
    assert known.root_error_m2 == roots[0].oracle_state.target.root_error_m2
    assert completion.reward == pytest.approx((known.root_error_m2 - known.error_m2) / known.root_error_m2, rel=1e-5)


def test_a_completion_knows_what_the_oracle_knows_at_its_end(generator, roots):
    wide = RANDOM.model_copy(update={"branch": 2, "beam_width": 2})
    for root in roots[1:3]:
        (group,) = run(AsyncRolloutImpl(2, evaluator(generator)), RolloutTask(0, root, wide, seed=5))
        for completion in group.completions:
            state = root.oracle_state
            for entry in completion.step_log:
                if isinstance(entry, Action):
                    state = generator.scorer.advance(state, entry.pose_world_camera)
            known = completion.oracle_state
            assert known.points == state.target.state.point_count > known.root_points
            assert np.float32(known.error_m2) == np.float32(state.target.error_m2)
            assert known.views_scored == sum(completion.worker_views.values()) > 0


def test_a_step_says_how_long_it_took(generator, roots):
    (group,) = run(AsyncRolloutImpl(2, evaluator(generator)), RolloutTask(0, roots[2], RANDOM, seed=5))
    for completion in group.completions:
        seconds = [step.seconds for step in completion.steps]
        assert len(seconds) == 2 and min(seconds) > 0
        assert sum(seconds) == pytest.approx(completion.timings_s["score"] + completion.timings_s["select"])


@pytest.mark.parametrize(
    "limits",
    [BatchLimits(), BatchLimits(max_views=1), BatchLimits(max_wait_s=0.05, workers=2), BatchLimits(max_wait_s=0)],
)
def test_one_or_eight_concurrent_rollouts_and_any_batching_give_the_same_bits(generator, roots, limits):
    managed = [RolloutTask(i, root, RANDOM, seed=5) for i, root in enumerate(roots[:2])]
    alone = [completion for root in managed for completion in run(AsyncRolloutImpl(4, evaluator(generator)), root)]
    together = run(AsyncRolloutImpl(4, evaluator(generator), limits=limits), *managed)
    assert chains_of(together) == chains_of(alone)


class SlowAtFirst(StateEvaluator):
    """Takes its time over the first batch and notes the size of each."""

    sizes: list[int]

    def evaluate(self, requests):
        self.sizes.append(len(requests))
        if len(self.sizes) == 1:
            time.sleep(0.2)
        return super().evaluate(requests)


@pytest.mark.parametrize(("states", "sizes"), [(100, [1, 5]), (2, [1, 2, 2, 1])])
def test_what_gathers_while_the_worker_is_busy_goes_off_together_within_the_limit(generator, roots, states, sizes):
    slow = SlowAtFirst(generator.config, generator.scorer)
    slow.sizes = []
    views = states * generator.config.candidates.num_candidates

    async def work() -> None:
        batcher = EvaluationBatcher(slow, BatchLimits(max_views=views, max_wait_s=0.001))
        asked = []
        for seed in range(6):
            asked.append(asyncio.ensure_future(batcher.evaluate([StateRequest(roots[0], seed, ())])))
            await asyncio.sleep(0.01)
        await asyncio.gather(*asked)
        await batcher.aclose()

    asyncio.run(work())
    assert slow.sizes == sizes


def test_a_group_of_one_equals_what_the_campaign_stores(generator, roots):
    recipe = generator.config.recipes[3]
    (group,) = run(AsyncRolloutImpl(1, evaluator(generator)), RolloutTask(0, roots[0], recipe, generator.config.seed))
    identity = roots[0].actor.identity
    record = next(
        record
        for record in generator.records([generator.store.row(identity.sample_index)])
        if record.rollout_id_prefix.endswith(recipe.name)
    )
    for chain, stored in zip(group.completions[0].chains, record.chains, strict=True):
        for step, kept in zip(chain.steps, stored.steps, strict=True):
            assert digest(step.state.shell) == digest(kept.shell)
            assert digest(step.state.labels) == digest(kept.labels)
            assert step.selected_shell_index == kept.selection.selected_shell_index


def test_recipes_that_start_at_one_root_score_it_once(generator, roots):
    shared = evaluator(generator)
    recipes = [GREEDY, RANDOM, RolloutRecipeConfig(name="soft", policy="temperature_softmax")]
    short = [recipe.model_copy(update={"horizon": 1}) for recipe in recipes]
    run(AsyncRolloutImpl(1, shared), *(RolloutTask(0, roots[0], recipe, 5) for recipe in short))
    alone = evaluator(generator)
    run(AsyncRolloutImpl(1, alone), RolloutTask(0, roots[0], short[0], 5))
    assert shared.views_scored == alone.views_scored > 0


@pytest.fixture(scope="module")
def shared(generator) -> StateEvaluator:
    """For tests that may take states from each other."""
    return evaluator(generator)


RATES = ("truncation_rate", "natural_termination_rate", "no_takeable_view_rate", "max_steps_reached_rate")


def out_of_reach(root):
    """The same root in a space that its actor knows nothing of: no view there can be taken."""
    far = np.full(3, 1e4, np.float32)
    return replace(root, extent=(far, far + 1))


@pytest.mark.parametrize(
    ("limits", "reason", "rates"),
    [
        ({}, "horizon", (0, 1, 0, 0)),
        ({"max_rollout_steps": 3}, "horizon", (0, 1, 0, 0)),
        ({"max_rollout_steps": 2}, "max_rollout_steps", (1, 0, 0, 1)),
        ({"max_views_scored": 30}, "max_views_scored", (1, 0, 0, 0)),
        ({"max_rollout_steps": 2, "max_views_scored": 10_000}, "max_rollout_steps", (1, 0, 0, 1)),
    ],
)
def test_what_ended_a_rollout_is_told_apart(shared, roots, limits, reason, rates):
    deep = GREEDY.model_copy(update={"horizon": 3})
    (group,) = run(AsyncRolloutImpl(2, shared, **limits), RolloutTask(0, roots[2], deep, 5))
    assert {c.end_reason for c in group.completions} == {reason}
    assert [c.truncated for c in group.completions] == [rates[0] == 1] * 2
    assert tuple(group.rollout_metrics[name] for name in RATES) == rates


def test_a_root_without_a_takeable_view_has_no_reward_and_no_steps(generator, roots):
    root = out_of_reach(roots[0])
    (group,) = run(AsyncRolloutImpl(2, evaluator(generator)), RolloutTask(0, root, RANDOM, 5))
    for completion in group.completions:
        assert (completion.end_reason, completion.truncated) == ("no_takeable_view", False)
        assert completion.reward is None and completion.steps == () and completion.num_steps == 0
        known = completion.oracle_state
        assert (known.error_m2, known.points) == (known.root_error_m2, known.root_points)
    metrics = group.rollout_metrics
    assert tuple(metrics[name] for name in RATES) == (0, 0, 1, 0)
    assert metrics["total_reward/mean"] is None and metrics["valid_fanout_per_step/mean"] is None
    assert metrics["total_steps"] == 0


@pytest.mark.parametrize("branch", [1, 2])
def test_a_view_budget_ends_a_rollout_between_steps_and_is_never_exceeded(generator, roots, branch):
    recipe = RANDOM.model_copy(update={"horizon": 3, "branch": branch, "beam_width": branch})
    shared = evaluator(generator)

    def rolled_out(horizon, budget, scorer=shared, limits=None):
        impl = AsyncRolloutImpl(1, scorer, horizon, limits, budget)
        (group,) = run(impl, RolloutTask(0, roots[2], recipe, 5))
        return group.completions[0]

    whole = [rolled_out(horizon, None) for horizon in (1, 2, 3)]
    views = [0, *(completion.views_scored for completion in whole)]
    for steps in (0, 1, 2, 3):
        for budget in {max(views[steps], 1), views[steps + 1] - 1} if steps < 3 else {views[3]}:
            cut = rolled_out(None, budget)
            assert cut.views_scored == views[steps] <= budget
            assert cut.num_steps == steps and (cut.reward is None) == (steps == 0)
            assert cut.truncation_reason == (None if steps == 3 else "max_views_scored")
            assert steps == 0 or digest(cut.chains) == digest(whole[steps - 1].chains)
    alone = rolled_out(None, views[2], evaluator(generator), BatchLimits(max_views=1, workers=2))
    assert digest(alone.chains) == digest(whole[1].chains), "neither batching nor what is cached matters"


def test_counting_views_before_they_are_scored_costs_no_view_twice(generator, roots):
    states = evaluator(generator)
    requests = [StateRequest(root, 5, ()) for root in roots[:2]]
    counted = states.views_to_score(requests)
    assert states.views_scored == 0
    assert sum(state.views_scored for state in states.evaluate(requests)) == counted == states.views_scored
    assert states.views_to_score(requests) == counted


def test_views_that_hit_nothing_were_scored(generator, roots):
    """A view with nothing in its range is looked at and then not takeable; it costs what every view costs."""
    short = generator.config.oracle.model_copy(update={"zfar_m": 0.6})
    config = generator.config.model_copy(update={"oracle": short})
    blind = StateEvaluator(config, OracleScorer(short))
    (state,) = blind.evaluate([StateRequest(roots[0], 5, ())])
    assert state.views_scored == blind.views_scored > state.shell.actor_action_mask.sum()


def test_views_are_counted_by_group_whatever_ran_before_or_beside_it(generator, roots):
    impl = AsyncRolloutImpl(2, evaluator(generator), 1, BatchLimits(max_wait_s=0.02))

    async def work() -> list[RolloutGroupRecord]:
        first = await impl.run_rollout(RolloutTask(0, roots[2], RANDOM, 1))
        beside = [impl.run_rollout(RolloutTask(i, roots[i], RANDOM, 2)) for i in (1, 2)]
        groups = [first, *await asyncio.gather(*beside)]
        await impl.aclose()
        return groups

    for group in asyncio.run(work()):
        views = sum(completion.views_scored for completion in group.completions)
        assert group.rollout_metrics["per_worker_view_counts"] == {"0": views}


def test_metrics_have_the_agreed_names_and_right_values(generator, roots):
    (group,) = run(AsyncRolloutImpl(3, evaluator(generator)), RolloutTask(0, roots[0], RANDOM, 5))
    metrics, rewards = group.rollout_metrics, [c.reward for c in group.completions]
    assert metrics["total_reward/mean"] == pytest.approx(np.mean(rewards))
    assert metrics["total_reward/stddev"] == pytest.approx(np.std(rewards, ddof=1))
    assert metrics["random_valid/total_reward/max"] == max(rewards)
    for name in metrics:
        if not name.startswith(("random_valid/", "timing/", "per_worker")):
            assert metrics[f"random_valid/{name}"] == metrics[name]
    assert metrics["total_steps"] == sum(c.num_steps for c in group.completions)
    assert metrics["steps_per_rollout/p99"] <= 2
    assert sum(metrics["per_worker_view_counts"].values()) == sum(c.views_scored for c in group.completions)
    fanouts = [step.valid_fanout for c in group.completions for step in c.steps]
    assert metrics["valid_fanout_per_step/median"] == np.median(fanouts)
    for stage in ("total", "score", "select", "aggregate"):
        assert metrics[f"timing/rollout/{stage}"] >= 0


def test_summaries_never_invent_a_number():
    assert summary("x", [])["x/mean"] is None
    assert summary("x", [2.0])["x/stddev"] is None
    assert summary("x", [1.0, float("nan"), 3.0])["x/mean"] == 2.0
    assert rate([]) is None and rate([True, False]) == 0.5


class BrokenScorer(OracleScorer):
    """An oracle that cannot score the states of one target."""

    broken_target: float

    def score(self, requests):
        if any(request.state.target.root_error_m2 == self.broken_target for request in requests):
            raise RuntimeError("the device went away")
        return super().score(requests)


def test_a_failing_rollout_names_itself_and_leaves_other_groups_alone(generator, roots):
    scorer = BrokenScorer(generator.config.oracle)
    scorer.broken_target = roots[1].oracle_state.target.root_error_m2
    impl = AsyncRolloutImpl(3, StateEvaluator(generator.config, scorer), limits=BatchLimits(max_wait_s=0.05))

    async def work():
        groups = await asyncio.gather(
            *(impl.run_rollout(RolloutTask(i, root, RANDOM, 5)) for i, root in enumerate(roots[:2])),
            return_exceptions=True,
        )
        await impl.aclose()
        return groups

    good, bad = asyncio.run(work())
    assert isinstance(good, RolloutGroupRecord) and len(good.completions) == 3
    assert isinstance(bad, RolloutFailed)
    assert roots[1].match.target.target_id in str(bad) and "rollout " in str(bad) and "the device went away" in str(bad)


def test_a_manager_checks_what_it_is_given(generator):
    with pytest.raises(ConfigError, match="num_generations_per_root must be >= 1, got 0"):
        RolloutManager(0, evaluator(generator))
    with pytest.raises(ConfigError, match="needs a scorer"):
        RolloutManager(1)
    with pytest.raises(ConfigError, match="rollout server"):
        RolloutManager(1, evaluator(generator), use_gym=True)
    with pytest.raises(ConfigError, match="max_rollout_steps must be >= 1, got 0"):
        RolloutManager(1, evaluator(generator), max_rollout_steps=0)
    with pytest.raises(ConfigError, match="max_views_scored must be >= 1, got 0"):
        RolloutManager(1, evaluator(generator), max_views_scored=0)
    with pytest.raises(ConfigError, match="max_views must be >= 1, got 0"):
        BatchLimits(max_views=0)


def test_a_manager_delegates(generator, roots):
    manager = RolloutManager(2, evaluator(generator))
    group = asyncio.run(manager.run_rollout(RolloutTask(0, roots[0], GREEDY, 5)))
    assert len(group.completions) == 2
