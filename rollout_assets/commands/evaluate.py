"""`rollout-assets evaluate`: how good policies are on scenes that they have not seen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout_assets.commands.opened_store import refuse_missing_source
from rollout_assets.commands.settings import read_settings
from rollout_assets.commands.terminal import (
    AsJson,
    coloured,
    green,
    print_json,
    print_table,
    progress_bars,
    red,
    say,
    warn,
    yellow,
)
from rollout_assets.config import CampaignConfig, Split, load_campaign, merge_tables
from rollout_assets.errors import ConfigError, counted
from rollout_assets.evaluation.config import EvaluationConfig, read_evaluation_file
from rollout_assets.evaluation.roster import RANDOM, roster
from rollout_assets.interruption import INTERRUPTED

if TYPE_CHECKING:
    from rollout_assets.evaluation.result import PolicyEvaluation, PolicyVerdict


def evaluate(
    file: Annotated[
        Path | None, typer.Argument(help="An evaluation's TOML file; options override its keys.", metavar="FILE.toml")
    ] = None,
    campaign: Annotated[
        str | None,
        typer.Option(
            "--campaign",
            "-c",
            help="Campaign whose source, targets, candidates, oracle and splits are used.",
            metavar="FILE|NAME",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="A checkpoint, or the name of a policy; NAME= before it names it. May be given again.",
            metavar="FILE.safetensors|POLICY",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Stores, tables and the page go here.", metavar="DIR")
    ] = None,
    horizon: Annotated[int | None, typer.Option(help="Views of a rollout; 3 by default.", min=1)] = None,
    split: Annotated[Split | None, typer.Option(help="Split of the campaign; val by default.")] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Campaigns to run, each with other views on offer; 2 by default.", min=1)
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first scenes of the split.", min=1)] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that build shards side by side.", min=1, max=256)
    ] = None,
    allow_seen_scenes: Annotated[
        bool,
        typer.Option("--allow-seen-scenes", help="Go on with a policy that was trained on a scene; the page says so."),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Set any other key of the TOML file; may be given again.", metavar="KEY=VALUE"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Roll policies out on held-out scenes, let the oracle score what they chose, and compare them.

    `random_valid`, `oracle_greedy` and `oracle_lookahead` are always there. All start from the same roots with the same
    views on offer. DIR gets evaluation.json, outcomes.parquet, evaluation.html and an ordinary campaign per seed.
    It may be stopped at any time: the same command goes on, and what is finished is used again. Without `--policy` and
    `--output`, a campaign with a section [evaluation] is evaluated as that says, in its own folder, as Dagster does.
    """
    values = {} if file is None else read_evaluation_file(file)
    merge_tables(values, read_settings(settings))
    overrides: dict[str, Any] = {
        "campaign": campaign,
        "policies": policy or None,
        "output_dir": output,
        "horizon": horizon,
        "split": split,
        "seeds": seeds,
        "limit": limit,
        "workers": workers,
        "allow_seen_scenes": allow_seen_scenes or None,
    }
    values |= {name: value for name, value in overrides.items() if value is not None}
    asking = _asking_campaign(values)
    if asking is None:
        config = EvaluationConfig(**_required(values))
        base = load_campaign(config.campaign, config.campaign_settings)
        roster(config)
        refuse_missing_source(base.source.store_dir)
    else:
        from rollout_assets.rounds.evaluation import campaign_evaluation

        config = campaign_evaluation(asking)
    from rollout_assets.evaluation.run import evaluate_policies

    try:
        with progress_bars() as progress:
            evaluation = evaluate_policies(config, progress, base=asking)
    except KeyboardInterrupt:
        warn(yellow("interrupted"), "; what is done stays, and the same command goes on from there")
        raise typer.Exit(INTERRUPTED) from None
    print_json(evaluation.to_jsonable()) if as_json else show_evaluation(evaluation)


def _asking_campaign(values: dict[str, Any]) -> CampaignConfig | None:
    """The campaign with options over its section [evaluation], if that alone says what to evaluate."""
    settings = {name: value for name, value in values.items() if name != "campaign"}
    if "campaign" not in values or "policies" in settings or "output_dir" in settings:
        return None
    if load_campaign(values["campaign"]).evaluation is None:
        return None
    return load_campaign(values["campaign"], {"evaluation": settings})


def _required(values: dict[str, Any]) -> dict[str, Any]:
    """The keys, if those without a default are among them; the message names the options that give them."""
    options = {"campaign": "--campaign", "policies": "--policy", "output_dir": "--output"}
    missing = [option for name, option in options.items() if not values.get(name)]
    if missing:
        raise ConfigError(f"{' and '.join(missing)} must be given, here or in FILE.toml; see 'evaluate --help'")
    return values


def show_evaluation(evaluation: PolicyEvaluation) -> None:
    """Print the table of policies, the verdicts, and where the page is."""
    from rollout_assets.evaluation.bootstrap import LEAST_SCENES

    facts = evaluation.facts
    rows = [
        (
            row["policy"],
            _spread(row, "gain"),
            _spread(row, "headroom", percent=True),
            _spread(row, "headroom_lookahead", percent=True),
            _spread(row, "first_headroom", percent=True),
            _spread(row, "regret"),
            row["ended_early"],
        )
        for row in evaluation.policies.sort("gain", descending=True).iter_rows(named=True)
    ]
    columns = ("policy", "final gain", "of headroom", "to lookahead", "first view", "regret", "ended early")
    roots = evaluation.policies["roots"][0]
    scenes = evaluation.policies["scenes"][0]
    few = scenes < LEAST_SCENES
    words = "too few scenes for intervals" if few else f"{100 * facts.bootstrap.confidence:g} % intervals over scenes"
    ground = f"{counted(roots, 'root')} of {counted(scenes, 'scene')}, {counted(facts.horizon, 'view')}"
    print_table(f"{ground}; {words}", columns, rows)
    for name in facts.named:
        verdict = evaluation.verdict(name)
        say(coloured(_colour(verdict), "•"), f" {verdict.sentence}")
        if verdict.seen_scenes:
            say(red("  trained on evaluated scenes"), f": {', '.join(verdict.seen_scenes)}")
    refused = sum(sum(seed.refused_targets.values()) for seed in facts.seeds)
    skipped = sum(len(seed.skipped_rows) for seed in facts.seeds)
    if refused or skipped:
        say(
            f"left out: {counted(refused, 'target')} without a label, "
            f"{counted(skipped, 'source row')} without a rollout"
        )
    say(green(evaluation.page))


def _spread(row: Mapping[str, Any], name: str, *, percent: bool = False) -> str:
    from rollout_assets.evaluation.tables import spread_texts

    value, interval = spread_texts(row, name, percent=percent)
    return f"{value} ({interval})" if interval else value


def _colour(verdict: PolicyVerdict) -> str:
    return "green" if verdict.beats_random else "red" if RANDOM in verdict.loses_to else "yellow"
