"""`rollout-assets collect`: many rollouts, here or from servers, one JSON line each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rollout_assets.commands.terminal import AsJson, err, out, print_json, print_table, progress_bars
from rollout_assets.config import DEMO_CAMPAIGN, load_campaign
from rollout_assets.errors import ConfigError

if TYPE_CHECKING:
    from rollout_assets.collection.campaign_inputs import PreparedInputs
    from rollout_assets.collection.configs import E2ERolloutCollectionConfig, RolloutCollectionConfig
    from rollout_assets.collection.coverage import CollectionReport
    from rollout_assets.progress import ProgressSink

Split = Literal["train", "validation", "benchmark"]

INTERRUPTED = 130


def collect(
    inputs: Annotated[
        Path | None, typer.Argument(help="Rows to run, one JSON object a line.", metavar="ROWS.jsonl")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--out", "-o", help="Results, one JSON line each.", metavar="OUT.jsonl")
    ] = None,
    campaign: Annotated[
        str | None,
        typer.Option("--campaign", "-c", help="Campaign to run in this process or to serve.", metavar="FILE|NAME"),
    ] = None,
    server: Annotated[
        list[str] | None, typer.Option(help="Address of a rollout server; may be given again.", metavar="URL")
    ] = None,
    servers: Annotated[int | None, typer.Option(help="Start this many servers and collect from them.", min=1)] = None,
    from_campaign: Annotated[
        bool,
        typer.Option("--from-campaign", help="Take the rows of the campaign's split; without --out only write them."),
    ] = False,
    split: Annotated[Split, typer.Option(help="Split of --from-campaign; benchmark is all of them.")] = "train",
    reuse_rows: Annotated[
        bool, typer.Option("--reuse-rows", help="Take rows prepared before, if campaign and source are the same.")
    ] = False,
    store: Annotated[
        Path | None, typer.Option(help="Also write the records into a rollout store.", metavar="OUT.zarr")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an output that is there.")] = False,
    parallel: Annotated[int, typer.Option(help="Rows under way at a time.", min=1)] = 8,
    limit: Annotated[int | None, typer.Option(help="Only the first lines.", min=1)] = None,
    repeats: Annotated[
        str, typer.Option(help="Rollouts per line: 4, or per agent: greedy=1,_default=4.", metavar="N|AGENT=N,…")
    ] = "1",
    same_seed: Annotated[
        bool, typer.Option("--same-seed", help="Repeats keep their line's seed, and so are all the same.")
    ] = False,
    seed: Annotated[int, typer.Option(help="What seeds of repeats are derived from.", min=0)] = 0,
    agent: Annotated[str | None, typer.Option(help="Recipe for lines that name none.")] = None,
    param: Annotated[
        list[str] | None, typer.Option(help="Set a parameter of every row; may be given again.", metavar="NAME=VALUE")
    ] = None,
    template: Annotated[
        Path | None, typer.Option(help="JSON or TOML file with fields for lines that lack them.", metavar="FILE")
    ] = None,
    attempts: Annotated[int, typer.Option(help="Attempts before a row counts as failed.", min=1)] = 4,
    timeout: Annotated[float, typer.Option(help="Seconds that one attempt may take.", min=0.01)] = 300.0,
    token_env: Annotated[
        str | None, typer.Option(help="Environment variable with the servers' token.", metavar="NAME")
    ] = None,
    success_threshold: Annotated[float, typer.Option(help="Reward from which a rollout is a success.")] = 0.1,
    no_aggregation: Annotated[bool, typer.Option("--no-aggregation", help="Write no metrics.")] = False,
    wandb: Annotated[bool, typer.Option("--wandb", help="Upload to Weights & Biases; needs the package.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run many rollouts and keep each as a JSON line: in this process, from servers, or from servers started for it.

    Exit code 0 when every row has a result, 3 when rows failed for good, 130 when stopped. Stop and go on at will:
    `--resume` never runs a row twice and refuses inputs or a campaign that have changed.
    """
    if output is None:
        if not from_campaign:
            raise ConfigError("--out is missing: where the results go")
        _write_rows(inputs, campaign or DEMO_CAMPAIGN, split, reuse_rows, as_json)
        return
    shared: dict[str, Any] = {
        "output_jsonl_fpath": output,
        "campaign": campaign if server and not from_campaign else campaign or DEMO_CAMPAIGN,
        "num_samples_in_parallel": parallel,
        "responses_create_params": _params(param or []),
        "store_dir": store,
        "upload_rollouts_to_wandb": wandb,
        "disable_aggregation": no_aggregation,
        "metrics": {"success_threshold": success_threshold},
        "token_env": token_env,
        "max_attempts": attempts,
        "request_timeout_s": timeout,
        "agent_name": agent,
        "limit": limit,
        "num_repeats": _repeats(repeats),
        "num_repeats_add_seed": _repeats(repeats) != 1 and not same_seed,
        "run_seed": seed,
        "prompt_config": template,
        "resume_from_cache": resume,
    }
    config = _config(shared, inputs, server, servers, from_campaign)
    try:
        with progress_bars() as progress:
            prepared = _prepare(config, split, reuse_rows or resume, progress) if from_campaign else None
            report = _run(config, progress)
    except KeyboardInterrupt:
        err.print("[yellow]interrupted[/]; what is done stays, and --resume goes on from there", highlight=False)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json({"prepared": prepared, **vars(report), "coverage": report.coverage.to_jsonable()})
    else:
        _show(prepared, report)
    raise typer.Exit(report.exit_code)


def _config(
    shared: dict[str, Any], inputs: Path | None, server: list[str] | None, servers: int | None, from_campaign: bool
) -> RolloutCollectionConfig | E2ERolloutCollectionConfig:
    from rollout_assets.collection.configs import E2ERolloutCollectionConfig, RolloutCollectionConfig, RowsConfig

    if servers is not None and server:
        raise ConfigError("--servers starts servers and --server names running ones; give one of the two")
    if inputs is None and not from_campaign:
        raise ConfigError("ROWS.jsonl is missing; name a file of rows, or take a campaign's with --from-campaign")
    rows = inputs or RowsConfig(**shared).prepared_jsonl_fpath
    if servers is not None:
        return E2ERolloutCollectionConfig(**shared, input_jsonl_fpath=rows, num_servers=servers)
    return RolloutCollectionConfig(**shared, input_jsonl_fpath=rows, server_urls=tuple(server or ()))


def _prepare(
    config: RolloutCollectionConfig | E2ERolloutCollectionConfig, split: Split, reuse: bool, progress: ProgressSink
) -> PreparedInputs:
    from rollout_assets.collection.campaign_inputs import CampaignInputs

    config.refuse_before_any_work()
    assert config.campaign is not None and config.input_jsonl_fpath is not None
    return CampaignInputs(load_campaign(config.campaign), split, config.input_jsonl_fpath).write(
        reuse=reuse, progress=progress
    )


def _run(config: RolloutCollectionConfig | E2ERolloutCollectionConfig, progress: ProgressSink) -> CollectionReport:
    from rollout_assets.collection.collector import collect_rollouts
    from rollout_assets.collection.configs import E2ERolloutCollectionConfig
    from rollout_assets.collection.e2e import collect_end_to_end

    if isinstance(config, E2ERolloutCollectionConfig):
        return collect_end_to_end(config, progress).collected
    return collect_rollouts(config, progress)


def _write_rows(inputs: Path | None, campaign: str, split: Split, reuse: bool, as_json: bool) -> None:
    """Only write the rows of a campaign's split."""
    from rollout_assets.collection.campaign_inputs import CampaignInputs

    if inputs is None:
        raise ConfigError("--from-campaign needs ROWS.jsonl to write the rows to, or --out to collect them")
    with progress_bars() as progress:
        prepared = CampaignInputs(load_campaign(campaign), split, inputs).write(reuse=reuse, progress=progress)
    if as_json:
        print_json(prepared)
    else:
        _say(f"[green]{inputs}[/]: {_prepared_line(prepared)}")


def _params(given: list[str]) -> dict[str, Any]:
    """``name=value`` pairs; values are JSON where they can be read as such, else text."""
    params = {}
    for pair in given:
        name, sign, text = pair.partition("=")
        if not sign or not name:
            raise ConfigError(f"--param must be NAME=VALUE, got {pair!r}")
        try:
            params[name] = json.loads(text)
        except ValueError:
            params[name] = text
    return params


def _repeats(text: str) -> int | dict[str, int]:
    try:
        if "=" not in text:
            return int(text)
        pairs = [part.split("=") for part in text.split(",")]
        return {name.strip(): int(count) for name, count in pairs}
    except ValueError:
        raise ConfigError(f"--repeats must be a number or AGENT=N,…, got {text!r}") from None


def _show(prepared: PreparedInputs | None, report: CollectionReport) -> None:
    if prepared is not None:
        _say(f"rows: {_prepared_line(prepared)}")
    if report.metrics is not None:
        show_metrics(json.loads(report.metrics.read_bytes()))
    colour = "green" if report.coverage.complete else "yellow"
    cached = f", {report.cached:,} of them before" if report.cached else ""
    _say(f"[{colour}]{report.output}[/]: {report.coverage.line()}{cached}")
    if report.failures is not None:
        _say(f"[red]{report.failures}[/] says why rows failed; --resume tries them again")
    if report.gave_up:
        _say("[red]gave up[/]: too many rows in a row found nobody to answer them; the rest was not tried")
    if report.interrupted:
        _say("[yellow]stopped[/]; --resume goes on from there")
    if report.store is not None:
        _say(f"[green]{report.store}[/]: the records as a store, deeply validated")
    _say(f"{report.seconds:.1f} s, {report.rollouts_per_second:.1f} rollouts/s")


def show_metrics(entries: list[dict[str, Any]]) -> None:
    """Aggregated metrics, one agent a line."""
    rows = []
    for entry in entries:
        counts, metrics, keys = entry["counts"], entry["agent_metrics"], entry["key_metrics"]
        best = [name for name in keys if name.startswith("best@")]
        success = [name for name in keys if name.startswith("success@")]
        rows.append(
            (
                entry["agent_ref"]["name"],
                counts["tasks"],
                counts["expected"],
                counts["done"],
                counts["refused"],
                counts["failed"],
                counts["missing"],
                _figure(metrics.get("reward/mean"), keys.get("reward/mean", {}).get("interval")),
                _figure(metrics.get("reward/median")),
                _figure(metrics.get("reward/std")),
                ", ".join(f"{name} {_figure(keys[name]['value'])}" for name in (*best[-1:], *success[-1:])),
            )
        )
    columns = ("agent", "tasks", "expected", "done", "refused", "failed", "missing")
    print_table("results", (*columns, "reward", "median", "std", "of k"), rows)


def _figure(value: float | None, interval: list[float] | None = None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" + (f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else "")


def _prepared_line(prepared: PreparedInputs) -> str:
    skipped = ", ".join(f"{count} {reason}" for reason, count in prepared.skipped.items())
    return (
        f"{prepared.rows:,} rows of {prepared.source_rows:,} source rows, {prepared.targets_refused} targets without "
        f"a label, {sum(prepared.skipped.values())} source rows skipped{f' ({skipped})' if skipped else ''}"
    )


def _say(text: str) -> None:
    out.print(text, highlight=False, soft_wrap=True)
