"""End to end: prepare a split's requests, start servers, collect from them, stop them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rollout_assets.collection.campaign_inputs import CampaignInputs, PreparedInputs
from rollout_assets.collection.collector import RolloutCollectionHelper, run_draining, sole_writer
from rollout_assets.collection.configs import CollectCommandConfig, SplitConfig
from rollout_assets.collection.coverage import CollectionReport
from rollout_assets.config import load_campaign
from rollout_assets.progress import SILENT, ProgressSink
from rollout_assets.serving.server.fleet import FleetOptions, server_fleet


@dataclass(frozen=True)
class E2EReport:
    """What was prepared, if a split was, and what was collected."""

    prepared: PreparedInputs | None
    collected: CollectionReport


def collect_end_to_end(
    config: SplitConfig, progress: ProgressSink = SILENT, server_arguments: tuple[str, ...] = ()
) -> E2EReport:
    """Prepare, serve and collect. The servers are stopped in bounded time however this ends."""
    with sole_writer(config):
        return _collect_from_fleet(config, progress, server_arguments)


def collect_from_command(config: CollectCommandConfig, progress: ProgressSink = SILENT) -> E2EReport:
    """Prepare and collect: with servers started for it, from running servers, or in this process."""
    if config.num_servers is not None:
        return collect_end_to_end(config, progress)
    with sole_writer(config):
        prepared, inputs = _prepare(config, progress)
        plain = config.for_servers(config.server_urls, inputs)
        return E2EReport(prepared, run_draining(lambda helper: helper.run_as_sole_writer(plain), progress))


def _collect_from_fleet(config: SplitConfig, progress: ProgressSink, server_arguments: tuple[str, ...]) -> E2EReport:
    assert config.campaign is not None and config.num_servers is not None
    prepared, inputs = _prepare(config, progress)
    fleet = FleetOptions(
        campaign=config.campaign,
        count=config.num_servers,
        start_timeout_s=config.start_timeout_s,
        stop_timeout_s=config.stop_timeout_s,
        token_env=config.token_env,
        arguments=server_arguments,
    )

    async def collect(helper: RolloutCollectionHelper) -> CollectionReport:
        async with server_fleet(fleet, helper.stop) as urls:
            return await helper.run_as_sole_writer(config.for_servers(urls, inputs))

    return E2EReport(prepared, run_draining(collect, progress))


def _prepare(config: SplitConfig, progress: ProgressSink) -> tuple[PreparedInputs | None, Path]:
    """The file of requests: the one that is given, or one written for the campaign's split."""
    config.refuse_before_any_work()
    if config.input_jsonl_fpath is not None:
        return None, config.input_jsonl_fpath
    assert config.campaign is not None
    split = CampaignInputs(load_campaign(config.campaign), config.split, config.beside("_prepared_inputs.jsonl"))
    reuse = config.reuse_existing_data_preparation or config.resume_from_cache
    return split.write(reuse=reuse, progress=progress), split.path
