import asyncio
import threading
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
from tests.rollouts.test_generation import campaign
from tests.support.digests import content_digest
from tests.support.refusals import refused
from tests.support.waiting import PATIENCE_S

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
    return [content_digest(completion.chains) for group in groups for completion in group.completions]


def test_group_has_n_completions_in_index_order_with_seeds(generator, roots):
    (group,) = run(AsyncRolloutImpl(4, evaluator(generator)), RolloutTask(9, roots[0], RANDOM, seed=5))
    assert [completion.rollout_index for completion in group.completions] == [0, 1, 2, 3]
    assert [completion.seed for completion in group.completions] == [derived_seed(5, i) for i in range(4)]
    assert group.root_index == 9 and len({c.seed for c in group.completions}) == 4
    assert len({content_digest(c.chains) for c in group.completions}) == 4


def test_step_log_is_the_root_then_action_and_observation(generator, roots):
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


def test_concurrency_and_batching_change_no_bit(generator, roots):
    managed = [RolloutTask(i, root, RANDOM, seed=5) for i, root in enumerate(roots[:2])]
    alone = chains_of([group for root in managed for group in run(AsyncRolloutImpl(4, evaluator(generator)), root)])
    for limits in (BatchLimits(), BatchLimits(max_views=1, max_wait_s=0.05, workers=2)):
        together = run(AsyncRolloutImpl(4, evaluator(generator), limits=limits), *managed)
        assert chains_of(together) == alone, limits


class HeldAtFirst(StateEvaluator):
    """Holds the first batch until it is released, and notes the size of each."""

    def __init__(self, *parts):
        super().__init__(*parts)
        self.sizes: list[int] = []
        self.busy, self.release = threading.Event(), threading.Event()

    def evaluate(self, requests):
        self.sizes.append(len(requests))
        self.busy.set()
        assert self.release.wait(PATIENCE_S)
        return super().evaluate(requests)


@pytest.mark.parametrize(("states", "sizes"), [(100, [1, 5]), (2, [1, 2, 2, 1])])
def test_requests_to_a_busy_worker_share_batches(generator, roots, states, sizes):
    held = HeldAtFirst(generator.config, generator.scorer)
    views = states * generator.config.candidates.num_candidates

    async def work() -> None:
        batcher = EvaluationBatcher(held, BatchLimits(max_views=views, max_wait_s=0))
        first, *others = (batcher.evaluate([StateRequest(roots[0], seed, ())]) for seed in range(6))
        asked = [asyncio.ensure_future(first)]
        assert await asyncio.to_thread(held.busy.wait, PATIENCE_S)
        asked += map(asyncio.ensure_future, others)
        await asyncio.sleep(0)  # every task has handed its request over
        held.release.set()
        await asyncio.gather(*asked)
        await batcher.aclose()

    asyncio.run(work())
    assert held.sizes == sizes


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
            assert content_digest(step.state.shell) == content_digest(kept.shell)
            assert content_digest(step.state.labels) == content_digest(kept.labels)
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


def test_root_without_takeable_views_has_no_reward_or_steps(generator, roots):
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
def test_view_budget_ends_a_rollout_between_steps(generator, roots, branch):
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
            assert steps == 0 or content_digest(cut.chains) == content_digest(whole[steps - 1].chains)
    alone = rolled_out(None, views[2], evaluator(generator), BatchLimits(max_views=1, workers=2))
    assert content_digest(alone.chains) == content_digest(whole[1].chains), (
        "neither batching nor what is cached matters"
    )


def test_counting_views_before_scoring_scores_none_twice(generator, roots):
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


def test_views_are_counted_by_group(generator, roots):
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


def test_failing_rollout_is_named_and_other_groups_finish(generator, roots):
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
    with refused(ConfigError, "num_generations_per_root", 0):
        RolloutManager(0, evaluator(generator))
    with refused(ConfigError, "scorer"):
        RolloutManager(1)
    with refused(ConfigError, "server"):
        RolloutManager(1, evaluator(generator), use_gym=True)
    with refused(ConfigError, "max_rollout_steps", 0):
        RolloutManager(1, evaluator(generator), max_rollout_steps=0)
    with refused(ConfigError, "max_views_scored", 0):
        RolloutManager(1, evaluator(generator), max_views_scored=0)
    with refused(ConfigError, "max_views", 0):
        BatchLimits(max_views=0)


def test_a_manager_delegates(generator, roots):
    manager = RolloutManager(2, evaluator(generator))
    group = asyncio.run(manager.run_rollout(RolloutTask(0, roots[0], GREEDY, 5)))
    assert len(group.completions) == 2
