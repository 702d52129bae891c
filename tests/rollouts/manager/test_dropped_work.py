"""States that no rollout waits for any more are not scored."""

import asyncio
import threading

import pytest

from rollout_assets.config import RolloutRecipeConfig
from rollout_assets.errors import RolloutFailed, ServerUnavailable
from rollout_assets.rollouts.evaluation import StateEvaluator
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.manager.batching import BatchLimits
from rollout_assets.rollouts.manager.completions import RolloutTask
from rollout_assets.rollouts.manager.native import AsyncRolloutImpl
from rollout_assets.sources.vin_store import VinOfflineStore
from tests.rollouts.test_generation import campaign
from tests.support.waiting import PATIENCE_S

ONE_STEP = RolloutRecipeConfig(name="random_valid", policy="random_valid", horizon=1)
GROUP = 4
DROPPED_SEED, KEPT_SEED = 5, 77


class Held(StateEvaluator):
    """Holds its first call until it is released, notes the seeds of every call, and refuses some seeds."""

    def __init__(self, generator, refuses=()):
        super().__init__(generator.config, generator.scorer)
        self.calls: list[list[int]] = []
        self.refuses = frozenset(refuses)
        self.busy, self.release = threading.Event(), threading.Event()

    def evaluate(self, requests):
        self.calls.append([request.seed for request in requests])
        self.busy.set()
        assert self.release.wait(PATIENCE_S)
        if self.refuses.intersection(self.calls[-1]):
            raise ServerUnavailable("the device is gone")
        return super().evaluate(requests)


@pytest.fixture(scope="module")
def generator(small_store) -> RolloutGenerator:
    return RolloutGenerator(campaign(), VinOfflineStore.open(small_store))


@pytest.fixture(scope="module")
def root(generator):
    return next(root for row in generator.store.rows() for root in generator.prepare(row).roots)


def run_two_groups(held, root, states_per_call, *, cancel):
    """What became of a group that is cancelled or fails, and the rollouts of another one beside it."""
    limits = BatchLimits(max_views=states_per_call * held.config.candidates.num_candidates, max_wait_s=0)

    async def work():
        impl = AsyncRolloutImpl(GROUP, held, limits=limits)
        dropped = asyncio.ensure_future(impl.run_rollout(RolloutTask(0, root, ONE_STEP, seed=DROPPED_SEED)))
        kept = asyncio.ensure_future(impl.run_rollout(RolloutTask(1, root, ONE_STEP, seed=KEPT_SEED)))
        assert await asyncio.to_thread(held.busy.wait, PATIENCE_S)
        if cancel:
            dropped.cancel()
            await asyncio.wait([dropped])
        held.release.set()
        outcomes = await asyncio.gather(dropped, kept, return_exceptions=True)
        await impl.aclose()
        return outcomes

    return asyncio.run(work())


@pytest.mark.parametrize("states_per_call", [1, GROUP])
def test_states_of_a_cancelled_group_are_not_scored(generator, root, states_per_call):
    held = Held(generator)
    dropped, kept = run_two_groups(held, root, states_per_call, cancel=True)
    assert isinstance(dropped, asyncio.CancelledError) and len(kept.completions) == GROUP
    scored = [seed for call in held.calls[1:] for seed in call]
    assert sorted(scored) == sorted(completion.seed for completion in kept.completions)


@pytest.mark.parametrize("states_per_call", [1, GROUP])
def test_states_of_a_failed_group_are_not_scored(generator, root, states_per_call):
    held = Held(generator, refuses=[DROPPED_SEED])
    dropped, kept = run_two_groups(held, root, states_per_call, cancel=False)
    assert isinstance(dropped, RolloutFailed) and len(kept.completions) == GROUP
    own = {completion.seed for completion in kept.completions}
    calls_for_dropped = [call for call in held.calls if not own.issuperset(call)]
    assert len(calls_for_dropped) == (1 if states_per_call == 1 else 2)


def test_a_state_that_another_rollout_waits_for_is_scored(generator, root):
    held = Held(generator)
    limits = BatchLimits(max_views=held.config.candidates.num_candidates, max_wait_s=0)

    async def work():
        impl = AsyncRolloutImpl(2, held, limits=limits)
        groups = [asyncio.ensure_future(impl.run_rollout(RolloutTask(n, root, ONE_STEP, seed=5))) for n in range(2)]
        assert await asyncio.to_thread(held.busy.wait, PATIENCE_S)
        groups[0].cancel()
        await asyncio.wait([groups[0]])
        held.release.set()
        group = await groups[1]
        await impl.aclose()
        return group

    group = asyncio.run(work())
    assert sorted(seed for call in held.calls for seed in call) == sorted(c.seed for c in group.completions)
