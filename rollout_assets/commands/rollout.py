"""`rollout-assets rollout`: run one root and show what happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout_assets.commands.opened_store import refuse_missing_source
from rollout_assets.commands.settings import CampaignSettings, key_or_index, read_settings
from rollout_assets.commands.terminal import AsJson, CampaignOption, coloured, print_table, say, show
from rollout_assets.config import DEMO_CAMPAIGN, CampaignConfig, load_campaign
from rollout_assets.errors import ConfigError
from rollout_assets.files import naming

if TYPE_CHECKING:
    from rollout_assets.rollouts.roots import PreparedSample, TargetedRoot
    from rollout_assets.rollouts.step_table import StepRow
    from rollout_assets.targets.matching import TargetMatch


def rollout(
    sample: Annotated[str, typer.Argument(help="Index or key of a source row.", metavar="SAMPLE")],
    campaign: CampaignOption = DEMO_CAMPAIGN,
    target: Annotated[
        str, typer.Option(help="Rank of the target, 0 is the best; or the id of any target.", metavar="RANK|ID")
    ] = "0",
    recipe: Annotated[str | None, typer.Option(help="Only this recipe of the campaign; default: all of them.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write a 3-D page of the last recipe's best chain.", metavar="FILE.html")
    ] = None,
    settings: CampaignSettings = None,
    as_json: AsJson = False,
) -> None:
    """Run one root: pick a target, offer views, score them, take one, go on; and show every step.

    `gain` and `total` are root gains: the share of the error at the root that a view, or all so far, took away.
    """
    config = _only(load_campaign(campaign, read_settings(settings)), recipe)
    refuse_missing_source(config.source.store_dir)
    from rollout_assets.campaigns.plan import open_source
    from rollout_assets.rollouts.generator import RolloutGenerator
    from rollout_assets.rollouts.step_table import step_rows
    from rollout_assets.rollouts.target_sources import ExplicitTargets

    if plot is not None:
        from rollout_assets.reports import rollout_picture  # pictures need the reports extra

        rollout_picture.refuse_other_pages(plot)
    store = open_source(config)
    named = ":" in target
    generator = RolloutGenerator(config, store, ExplicitTargets((target,)) if named else None)
    row = store.row(key_or_index(sample))
    prepared = generator.prepare(row)
    chosen = _target(prepared, 0 if named else _rank(target), row.sample_key)
    records = list(generator.records_of(replace(prepared, targets=(chosen,))))
    steps = [step for record in records for step in step_rows(record)]
    show(steps, as_json, lambda steps: _show(chosen.match, steps))
    if plot is not None:
        chain = records[-1].chains[0]
        root_pose, points_world = records[-1].root.pose_world_camera, chosen.actor.points_world
        around = rollout_picture.Surroundings.of(chosen.oracle_state, points_world, root_pose, chain, generator.scorer)
        with naming(plot):
            rollout_picture.plot_rollout(records[-1], chain, around, plot)
        if not as_json:
            say(f"wrote {plot}")


def _rank(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"--target must be a rank such as 0, or a target's id, got {text!r}") from None


def _target(sample: PreparedSample, rank: int, sample_key: str) -> TargetedRoot:
    """The target of that rank, or an error that says why it gets no rollout."""
    if sample.skip_reason is not None:
        raise ConfigError(f"{sample_key}: no target to roll out: {sample.skip_reason}")
    if not 0 <= rank < len(sample.targets):
        raise ConfigError(f"{sample_key}: target must be 0 to {len(sample.targets) - 1}, got {rank}")
    from rollout_assets.rollouts.roots import RefusedTarget

    target = sample.targets[rank]
    if isinstance(target, RefusedTarget):
        raise ConfigError(f"{target.match.target.target_id}: gets no rollout: {target.reason} ({target.detail})")
    return target


def _only(config: CampaignConfig, recipe: str | None) -> CampaignConfig:
    if recipe is None:
        return config
    chosen = tuple(each for each in config.recipes if each.name == recipe)
    if not chosen:
        names = ", ".join(each.name for each in config.recipes)
        raise ConfigError(f"campaign {config.name} has no recipe {recipe!r}; it has {names}")
    return config.model_copy(update={"recipes": chosen})


def _show(match: TargetMatch, steps: Sequence[StepRow]) -> None:
    from rollout_assets.rollouts.trace import recipe_and_chain

    target = match.target
    say(
        "target ",
        coloured("bold", target.target_id),
        f": {target.class_name}, score {target.score:.3f}, "
        f"{target.semidense_support_count} points, {match.status} with IoU {match.iou:.2f}",
    )
    print_table(
        "steps",
        ("rollout", "step", "valid", "refused because", "chosen", "p", "rri", "gain", "total", "best", "mean", "ended"),
        [
            (
                recipe_and_chain(step.rollout_id),
                step.step,
                f"{step.valid} of {step.candidates}",
                ", ".join(f"{name.lower()} {count}" for name, count in step.reasons.items()),
                step.chosen,
                _short(step.probability),
                _short(step.rri),
                _short(step.root_gain),
                _short(step.cumulative_root_gain),
                _short(step.best_root_gain),
                _short(step.mean_root_gain),
                step.ended,
            )
            for step in steps
        ],
    )


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
