"""Running requests: the one class behind a local agent and behind the server, so that both give the same bits."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from time import perf_counter
from typing import Any

from rollout_assets.campaigns.plan import open_source
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import ConfigError, RolloutAssetsError, RolloutFailed, RowRefused, SourceRowMissing, may_pass
from rollout_assets.geometry.devices import resolve_device
from rollout_assets.rollouts.evaluation import StateEvaluator
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.manager.batching import BatchLimits
from rollout_assets.rollouts.manager.completions import RolloutCompletion, RolloutTask
from rollout_assets.rollouts.manager.native import AsyncRolloutImpl
from rollout_assets.rollouts.remote.messages import RolloutRequest, RolloutResult
from rollout_assets.rollouts.roots import PreparedSample, RefusedTarget, TargetedRoot
from rollout_assets.serving.prepared_samples import PreparedSamples
from rollout_assets.serving.request_plans import RequestPlan, find_target, plan_request
from rollout_assets.serving.results import ResultBuilder
from rollout_assets.sources.layout import IndexRow
from rollout_assets.sources.vin_store import VinOfflineStore

ROWS_TRIED_FOR_WARM_UP = 4


@dataclass(frozen=True)
class ServiceLimits:
    """How much a service does at once and keeps in memory. None of it changes a result.

    ``running`` rollouts grow at a time and share device launches; more wait their turn. ``kept_samples`` prepared
    source rows stay in memory.
    """

    running: int = 32
    kept_samples: int = 64

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ConfigError(f"{name} must be >= 1, got {value}")


class RolloutService:
    """Runs requests of one campaign in this process, for one event loop.

    A result depends on its request and the campaign alone, to the bit, apart from its timings: not on what runs beside
    it, before it or elsewhere. Its digest and its record are those that the shard path makes for the same root, recipe
    and seed.
    """

    def __init__(
        self,
        config: CampaignConfig,
        store: VinOfflineStore | None = None,
        limits: BatchLimits | None = None,
        service_limits: ServiceLimits | None = None,
    ) -> None:
        self.config = config
        self.store = store or open_source(config)
        bounds = service_limits or ServiceLimits()
        generator = RolloutGenerator(config, self.store)
        evaluator = StateEvaluator(config, generator.scorer)
        self._impl = AsyncRolloutImpl(1, evaluator, limits=limits)
        self._results = ResultBuilder(evaluator, generator.provenance)
        self._split_hashes = dict(generator.provenance.split_hashes)
        self._samples = PreparedSamples(generator.prepare, bounds.kept_samples)
        self._finishing = ThreadPoolExecutor(1, thread_name_prefix="finishing")
        self._running = asyncio.Semaphore(bounds.running)
        self._in_flight = 0

    async def run(self, request: RolloutRequest) -> RolloutResult:
        """Run one request. One that cannot be run as asked is ``RowRefused``; one that fails is ``RolloutFailed``."""
        began = perf_counter()
        plan = plan_request(request, self.config)
        source_row = self._source_row(request)
        self._in_flight += 1
        try:
            async with self._running:
                waited = perf_counter()
                prepared = await self._samples.get(source_row)
                ready = perf_counter()
                result = await self._answer(plan, prepared)
        finally:
            self._in_flight -= 1
        now = perf_counter()
        timings = {"wait": waited - began, "prepare": ready - waited, **result.timings_s, "total": now - began}
        return result.model_copy(update={"timings_s": timings})

    def describe(self) -> dict[str, Any]:
        """What this service runs, so that a client can check it before asking."""
        return {
            "campaign": self.config.name,
            "config_hashes": self.config.hashes(),
            "seed": self.config.seed,
            "source_manifest_hash": self.store.source_manifest_hash,
            "source_rows": len(self.store),
            "splits": list(self.config.source.splits),
            "split_manifest_hashes": self._split_hashes,
            "recipes": [recipe.name for recipe in self.config.recipes],
            "device": resolve_device(self.config.oracle.device),
            "version": version("rollout-assets"),
            "in_flight": self._in_flight,
        }

    async def warm_up(self) -> None:
        """Load kernels and the first scene, so that the first request does not wait for them.

        A fault of the machine, such as a device that is not there, is raised: no request could be run.
        """
        splits = self.config.source.splits
        rows = [row for row in self.store.rows() if row.split in splits][:ROWS_TRIED_FOR_WARM_UP]
        for row in rows:
            try:
                result = await self.run(RolloutRequest(source_row=row.sample_index, recipe=self.config.recipes[0]))
            except RolloutAssetsError as error:
                if may_pass(error):  # the machine is at fault, and would be with every other row
                    raise
                continue
            if result.status == "completed":
                return

    async def aclose(self) -> None:
        """Finish the launches that are under way and stop the threads."""
        self._samples.close()
        self._finishing.shutdown(wait=False, cancel_futures=True)
        await self._impl.aclose()

    async def _answer(self, plan: RequestPlan, prepared: PreparedSample) -> RolloutResult:
        target = find_target(prepared, plan.request.target)
        if isinstance(target, RefusedTarget):
            return self._results.refused(plan, prepared, target)
        task = RolloutTask(0, target, plan.recipe, plan.config.seed, **vars(plan.limits))
        done = await self._impl.run_alone(task)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._finishing, self._finish, plan, prepared, target, done)

    def _finish(
        self, plan: RequestPlan, prepared: PreparedSample, root: TargetedRoot, done: RolloutCompletion
    ) -> RolloutResult:
        began = perf_counter()
        try:
            result = self._results.completed(plan, prepared, root, done)
        except Exception as error:
            raise RolloutFailed(f"{root.name}: its record could not be made: {error}") from error
        result.timings_s["record"] = perf_counter() - began
        return result

    def _source_row(self, request: RolloutRequest) -> IndexRow:
        by_key = request.source_row is None
        field, name = ("sample_key", request.sample_key) if by_key else ("source_row", request.source_row)
        assert name is not None  # a request has one of the two
        try:
            row = self.store.row(name)
        except SourceRowMissing:
            raise RowRefused(field, f"the source has rows 0 to {len(self.store) - 1}, got {name!r}") from None
        if row.split not in self.config.source.splits:
            splits = ", ".join(self.config.source.splits)
            raise RowRefused(field, f"{row.sample_key} is of split {row.split}; the campaign takes {splits}")
        return row
