"""`rollout-assets collect`: many rollouts, here or from servers, one JSON line each."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rollout_assets.commands.aggregate import show_metrics
from rollout_assets.commands.opened_store import refuse_missing_source
from rollout_assets.commands.settings import key_or_index, read_settings
from rollout_assets.commands.terminal import AsJson, green, print_json, progress_bars, red, say, show, warn, yellow
from rollout_assets.config import load_campaign, merge_tables
from rollout_assets.errors import ConfigError
from rollout_assets.files import file_lock
from rollout_assets.interruption import INTERRUPTED

if TYPE_CHECKING:
    from rollout_assets.collection.campaign_inputs import PreparedInputs
    from rollout_assets.collection.coverage import CollectionReport

Split = Literal["train", "val", "validation", "benchmark"]


def collect(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="A collection's TOML file, or requests to run, one JSON object a line. "
            "Without it, the requests of the campaign's split are run.",
            metavar="FILE.toml|REQUESTS.jsonl",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--out", "-o", help="Results, one JSON line each.", metavar="OUT.jsonl")
    ] = None,
    campaign: Annotated[
        str | None,
        typer.Option("--campaign", "-c", help="Campaign to run in this process or to serve.", metavar="FILE|NAME"),
    ] = None,
    split: Annotated[
        Split | None,
        typer.Option(help="Split of the campaign; validation is another name of val, and benchmark is all of them."),
    ] = None,
    servers: Annotated[
        str | None,
        typer.Option(help="Start this many servers, or use those at these addresses.", metavar="N|URL,…"),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first requests.", min=1)] = None,
    repeats: Annotated[
        str | None,
        typer.Option(help="Rollouts per request: 4, or per agent: greedy=1,_default=4.", metavar="N|AGENT=N,…"),
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="Also write the records into a rollout store.", metavar="OUT.zarr")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an output that is there.")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Go on, and also run again what failed for good.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Set any other key of the TOML file; may be given again.", metavar="KEY=VALUE"),
    ] = None,
    write_requests: Annotated[
        Path | None,
        typer.Option(help="Only write the requests of the campaign's split here.", metavar="REQUESTS.jsonl"),
    ] = None,
    example: Annotated[
        bool, typer.Option("--example", help="Print a TOML file to start from, all keys in it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run many rollouts and keep each as a JSON line: in this process, from servers, or from servers started for it.

    Exit code 0 when every request has a result, 3 when some failed for good, 130 when stopped. Stop and go on at will:
    `--resume` never runs a request twice, leaves alone what failed for good, and refuses inputs or a campaign that have
    changed.
    """
    if example:
        typer.echo((resources.files("rollout_assets.collection") / "example.toml").read_text("utf-8"), nl=False)
        return
    values = _values(file, settings or [])
    overrides = {
        "output_jsonl_fpath": output,
        "campaign": campaign,
        "split": split,
        "limit": limit,
        "num_repeats": None if repeats is None else _repeats(repeats),
        "store_dir": store,
        "resume_from_cache": resume or retry_failed or None,
        "retry_failed": retry_failed or None,
    }
    values |= {name: value for name, value in overrides.items() if value is not None} | _servers(servers)
    if write_requests is not None:
        _write_requests(write_requests, values, as_json)
        return
    if "output_jsonl_fpath" not in values:
        raise ConfigError("--out is missing: where the results go")
    from rollout_assets.collection.configs import CollectCommandConfig

    config = CollectCommandConfig(**values)
    campaign_config = None if config.campaign is None else load_campaign(config.campaign)
    if campaign_config is not None and config.input_jsonl_fpath is None:
        refuse_missing_source(campaign_config.source.store_dir)
    from rollout_assets.collection.e2e import collect_from_command

    try:
        with progress_bars() as progress:
            report = collect_from_command(config, progress)
    except KeyboardInterrupt:
        warn(yellow("interrupted"), "; what is done stays, and --resume goes on from there")
        raise typer.Exit(INTERRUPTED) from None
    prepared, collected = report.prepared, report.collected
    if as_json:
        print_json({"prepared": prepared, **vars(collected), "coverage": collected.coverage.to_jsonable()})
    else:
        _show(prepared, collected)
    raise typer.Exit(collected.exit_code)


def _values(file: Path | None, settings: list[str]) -> dict[str, Any]:
    """Keys of a collection: those of a TOML file or the name of a file of requests, and settings over them."""
    if file is None:
        values: dict[str, Any] = {}
    elif file.suffix == ".toml":
        from rollout_assets.collection.configs import read_collection_file

        values = read_collection_file(file)
    else:
        values = {"input_jsonl_fpath": file}
    return merge_tables(values, read_settings(settings))


def _servers(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    if isinstance(count := key_or_index(text.strip()), int):
        return {"num_servers": count, "server_urls": ()}
    return {"num_servers": None, "server_urls": tuple(part.strip() for part in text.split(","))}


def _repeats(text: str) -> int | dict[str, int]:
    try:
        if "=" not in text:
            return int(text)
        pairs = [part.split("=") for part in text.split(",")]
        return {name.strip(): int(count) for name, count in pairs}
    except ValueError:
        raise ConfigError(f"--repeats must be a number or AGENT=N,…, got {text!r}") from None


def _write_requests(path: Path, values: dict[str, Any], as_json: bool) -> None:
    """Only write the requests of a campaign's split."""
    from rollout_assets.collection.configs import CollectCommandConfig

    config = CollectCommandConfig(**{"output_jsonl_fpath": path, **values})
    if config.campaign is None or config.input_jsonl_fpath is not None:
        raise ConfigError("--write-requests takes a campaign's requests; give it with --campaign, and no other file")
    campaign = load_campaign(config.campaign)
    refuse_missing_source(campaign.source.store_dir)
    from rollout_assets.collection.campaign_inputs import CampaignInputs

    with file_lock(config.lock_fpath, str(path)), progress_bars() as progress:
        inputs = CampaignInputs(campaign, config.split, path)
        prepared = inputs.write(reuse=config.reuse_existing_data_preparation, progress=progress)
    show(prepared, as_json, lambda prepared: say(green(path), f": {_prepared_line(prepared)}"))


def _show(prepared: PreparedInputs | None, report: CollectionReport) -> None:
    if prepared is not None:
        say(f"requests: {_prepared_line(prepared)}")
    if report.metrics is not None:
        show_metrics(json.loads(report.metrics.read_bytes()))
    colour = green if report.coverage.complete else yellow
    cached = f", {report.cached:,} of them before" if report.cached else ""
    say(colour(report.output), f": {report.coverage.line()}{cached}")
    if report.failures is not None:
        say(red(report.failures), " says why requests failed; --retry-failed runs them again")
    if report.gave_up:
        say(red("gave up"), ": too many requests in a row had no answer; the rest was not tried")
    if report.interrupted:
        say(yellow("stopped"), "; --resume goes on from there")
    if report.store is not None:
        say(green(report.store), ": the records as a store, deeply validated")
    say(f"{report.seconds:.1f} s, {report.rollouts_per_second:.1f} rollouts/s")


def _prepared_line(prepared: PreparedInputs) -> str:
    skipped = ", ".join(f"{count} {reason}" for reason, count in prepared.skipped.items())
    return (
        f"{prepared.rows:,} requests of {prepared.source_rows:,} source rows, {prepared.targets_refused} targets "
        f"without a label, {sum(prepared.skipped.values())} source rows skipped{f' ({skipped})' if skipped else ''}"
    )
