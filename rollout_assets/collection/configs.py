"""Configurations of a collection, of its end-to-end form and of an aggregation. Unknown keys are refused."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from rollout_assets.config import (
    DEMO_CAMPAIGN,
    ConfigSection,
    Count,
    Seconds,
    Seed,
    ServerUrl,
    UsablePath,
    shipped_campaigns,
)
from rollout_assets.config.problems import problems_list, problems_text
from rollout_assets.errors import ConfigError, ResumeRefused
from rollout_assets.metrics.results import MetricOptions
from rollout_assets.parsing import expand_path, read_toml_file
from rollout_assets.rollouts.remote.messages import RolloutParams

CollectionSplit = Literal["train", "validation", "benchmark"]


def _spelled_out(split: object) -> object:
    """The split ``val`` of campaigns and stores is called ``validation`` here; both names are taken."""
    return "validation" if split == "val" else split


DEFAULT_AGENT = "_default"
"""Key of ``num_repeats`` for agents that it does not name."""


def _has_a_name(path: Path) -> Path:
    if not path.name:
        raise ValueError(f"{path} has no name of its own, so nothing can be written there")
    return path


NamedPath = Annotated[UsablePath, AfterValidator(_has_a_name)]
"""A path that something is written to, and something else beside it."""


def lock_path(path: Path) -> Path:
    """The lock file of an output, beside it."""
    return path.with_name(f".{path.name}.lock")


class CollectionModel(ConfigSection):
    """Results in a file and their metrics beside it.

    Frozen; unknown keys and values that cannot be used are one ``ConfigError`` with every problem. None means the
    default of a field.
    """

    output_jsonl_fpath: NamedPath
    metrics: MetricOptions = MetricOptions()

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**{name: value for name, value in values.items() if value is not None})
        except ValidationError as error:
            raise ConfigError(problems_list(type(self).__name__, error, type(self))) from None

    def beside(self, suffix: str) -> Path:
        """A file or folder that belongs to the output: ``<stem><suffix>`` in the same directory."""
        return self.output_jsonl_fpath.with_name(self.output_jsonl_fpath.stem + suffix)

    @property
    def aggregate_metrics_fpath(self) -> Path:
        """Metrics of the results, an array in agent-name order."""
        return self.beside("_aggregate_metrics.json")

    @property
    def run_fpath(self) -> Path:
        """What a collection's results depend on, read when it is resumed; only a collection's output has one."""
        return self.beside("_run.json")

    @property
    def lock_fpath(self) -> Path:
        """Held by the one process that writes this output and what lies beside it."""
        return lock_path(self.output_jsonl_fpath)


class SharedRolloutCollectionConfig(CollectionModel):
    """What every way of collecting has in common.

    ``responses_create_params`` are merged over each request's parameters. ``max_attempts`` bounds how often a request
    is tried when its failure may pass, over all runs that resume a collection; a busy server is asked for
    ``busy_patience_s`` without counting an attempt.
    After ``give_up_after`` such failures in a row nobody seems to answer, and no other request is tried.
    ``store_dir`` asks for a rollout store of all records beside the lines.
    """

    campaign: str | None = None
    num_samples_in_parallel: Count = 8
    responses_create_params: dict[str, Any] = Field(default_factory=dict)
    store_dir: NamedPath | None = None
    upload_rollouts_to_wandb: bool = False
    disable_aggregation: bool = False
    token_env: str | None = None
    max_attempts: Count = 4
    request_timeout_s: Seconds = 300.0
    busy_patience_s: Seconds = 600.0
    backoff_s: Seconds = 0.5
    give_up_after: Count = 100

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if self.output_jsonl_fpath.suffix != ".jsonl":
            raise ValueError(f"output_jsonl_fpath must end in .jsonl, got {self.output_jsonl_fpath}")
        try:
            RolloutParams.model_validate(self.responses_create_params)
        except ValidationError as error:
            raise ValueError(f"responses_create_params: {problems_text(error, RolloutParams)}") from None
        if self.store_dir is not None and self.campaign is None:
            raise ValueError("store_dir needs a campaign, whose layout the store takes")
        return self

    @property
    def failures_jsonl_fpath(self) -> Path:
        """Requests that could not be run, with class, message and attempts."""
        return self.beside("_failures.jsonl")

    @property
    def locks(self) -> dict[Path, Path]:
        """What only one process may write at a time, and its lock: the output, and the store if there is one."""
        written = (self.output_jsonl_fpath, *(() if self.store_dir is None else (self.store_dir,)))
        return {path: lock_path(path) for path in written}


class RequestsConfig(SharedRolloutCollectionConfig):
    """How input lines become requests.

    ``agent_name`` is for lines that name none. ``prompt_config`` is a request template, as a mapping or as the path of
    a JSON or TOML file: fields that a line lacks are taken from it. ``limit`` counts lines. With
    ``num_repeats_add_seed`` every rollout gets a seed of its own, derived from ``run_seed``; without it repeats are the
    same to the bit. A resumed collection runs what has no result yet; what failed for good is run again only with
    ``retry_failed``, which grants it ``max_attempts`` once more.
    """

    agent_name: str | None = None
    limit: Count | None = None
    num_repeats: Count | dict[str, Count] = 1
    num_repeats_add_seed: bool = False
    run_seed: Seed = 0
    prompt_config: UsablePath | dict[str, Any] | None = None
    resume_from_cache: bool = False
    retry_failed: bool = False

    @model_validator(mode="after")
    def _retries_what_is_there(self) -> Self:
        if self.retry_failed and not self.resume_from_cache:
            raise ValueError("retry_failed is for a collection that goes on; set resume_from_cache too")
        return self

    @model_validator(mode="after")
    def _once_for_a_store(self) -> Self:
        if self.store_dir is not None and self.num_repeats != 1:
            raise ValueError(f"a store holds one rollout per root and recipe; num_repeats asks for {self.num_repeats}")
        return self

    @property
    def materialized_jsonl_fpath(self) -> Path:
        """Every request that is to be run, repeats written out, in input order."""
        return self.beside("_materialized_inputs.jsonl")

    def refuse_before_any_work(self) -> None:
        """Raise if something that is asked for is not available, or if there is an output and it is not resumed."""
        if self.upload_rollouts_to_wandb and find_spec("wandb") is None:
            raise ConfigError(
                "upload_rollouts_to_wandb: the package 'wandb' is not installed; install it, or leave this off"
            )
        for path in (self.output_jsonl_fpath, self.failures_jsonl_fpath):
            if path.exists() and not self.resume_from_cache:
                raise ResumeRefused(f"{path}: already there; resume to go on with it, or choose another output")

    @property
    def agents_with_repeats(self) -> set[str]:
        """Agents that ``num_repeats`` names."""
        return set() if isinstance(self.num_repeats, int) else self.num_repeats.keys() - {DEFAULT_AGENT}

    def repeats_of(self, agent: str) -> int | None:
        """How often a request of an agent is run; None when nothing says so."""
        if isinstance(self.num_repeats, int):
            return self.num_repeats
        return self.num_repeats.get(agent, self.num_repeats.get(DEFAULT_AGENT))


class RolloutCollectionConfig(RequestsConfig):
    """Collect the requests of one JSONL file, from servers at ``server_urls`` or, without any, in this process."""

    input_jsonl_fpath: UsablePath
    server_urls: tuple[ServerUrl, ...] = ()

    @model_validator(mode="after")
    def _somewhere_to_run(self) -> Self:
        if not self.server_urls and self.campaign is None:
            raise ValueError("give server_urls to collect from servers, or a campaign to collect in this process")
        return self


class SplitConfig(RequestsConfig):
    """Requests of a campaign's split, and servers that are started for them.

    ``benchmark`` means every split of the campaign. ``reuse_existing_data_preparation``, like resuming, takes requests
    prepared before, if they were prepared for the same campaign, source and split. ``input_jsonl_fpath`` brings
    requests instead of a split.
    """

    split: Annotated[CollectionSplit, BeforeValidator(_spelled_out)] = "train"
    reuse_existing_data_preparation: bool = False
    input_jsonl_fpath: UsablePath | None = None
    num_servers: Count | None = None
    start_timeout_s: Seconds = 120.0
    stop_timeout_s: Seconds = 15.0

    def for_servers(self, urls: tuple[str, ...], inputs: Path) -> RolloutCollectionConfig:
        """The plain collection of these requests from running servers, or in this process when there are none."""
        shared = {name: getattr(self, name) for name in RequestsConfig.model_fields}
        return RolloutCollectionConfig(**shared, input_jsonl_fpath=inputs, server_urls=urls)


class E2ERolloutCollectionConfig(SplitConfig):
    """Prepare the requests of a campaign's split, start servers, collect, and stop them again whatever happens."""

    campaign: str
    num_servers: Count = 1


class CollectCommandConfig(SplitConfig):
    """What ``rollout-assets collect`` takes: the keys of both kinds of collection, in a TOML file or as overrides.

    ``num_servers`` starts servers and ``server_urls`` names running ones; without either, requests are run in this
    process. Repeats get seeds of their own unless ``num_repeats_add_seed`` is false.
    """

    server_urls: tuple[ServerUrl, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: dict[str, Any]) -> dict[str, Any]:
        defaults: dict[str, Any] = {"num_repeats_add_seed": values.get("num_repeats", 1) != 1}
        if values.get("input_jsonl_fpath") and not values.get("server_urls"):
            defaults["campaign"] = DEMO_CAMPAIGN
        return defaults | values

    @model_validator(mode="after")
    def _something_to_run(self) -> Self:
        if self.input_jsonl_fpath is None and self.campaign is None:
            raise ValueError("nothing to run; name a file of requests, or a campaign whose requests are run")
        if self.num_servers is not None and self.server_urls:
            raise ValueError("num_servers starts servers and server_urls names running ones; give one of the two")
        return self


class RolloutAggregationConfig(CollectionModel):
    """Metrics over the result files that ``input_glob`` matches, and, with ``merge_shards``, one file of all lines."""

    input_glob: str
    merge_shards: bool = True


_PATHS = ("output_jsonl_fpath", "input_jsonl_fpath", "store_dir", "prompt_config")


def read_collection_file(path: Path) -> dict[str, Any]:
    """The keys of a collection's TOML file. Relative paths in it mean relative to the file, as in a campaign file."""
    values = read_toml_file(path, "rollout-assets collect --example")
    folder = path.resolve().parent
    for name in _PATHS:
        if isinstance(values.get(name), str):
            values[name] = folder / expand_path(values[name])
    campaign = values.get("campaign")
    if isinstance(campaign, str) and campaign not in shipped_campaigns():
        values["campaign"] = str(folder / expand_path(campaign))
    return values
