"""`rollout-assets rollout`: run one root and show what happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout_assets.commands.terminal import AsJson, CampaignOption, out, print_json, print_table
from rollout_assets.config import DEMO_CAMPAIGN, CampaignConfig, load_campaign
from rollout_assets.errors import ConfigError
from rollout_assets.rollouts.trace import recipe_and_chain

if TYPE_CHECKING:
    from rollout_assets.rollouts.step_table import StepRow
    from rollout_assets.targets.matching import TargetMatch


def rollout(
    sample: Annotated[str, typer.Argument(help="Index or key of a source row.", metavar="SAMPLE")],
    campaign: CampaignOption = DEMO_CAMPAIGN,
    target: Annotated[int, typer.Option(help="Rank of the target, 0 is the best.")] = 0,
    recipe: Annotated[str | None, typer.Option(help="Only this recipe of the campaign; default: all of them.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write a 3-D page of the last recipe's best chain.", metavar="FILE.html")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run one root: pick a target, offer views, score them, take one, go on; and show every step.

    `gain` and `total` are root gains: the share of the error at the root that a view, or all so far, took away.
    """
    config = _only(load_campaign(campaign), recipe)
    if plot is not None:
        from rollout_assets.reports.rollout_picture import refuse_other_pages

        refuse_other_pages(plot)
    from rollout_assets.rollouts.generator import RolloutGenerator
    from rollout_assets.rollouts.roots import RefusedTarget
    from rollout_assets.rollouts.step_table import step_rows
    from rollout_assets.sources.vin_store import VinOfflineStore

    store = VinOfflineStore.open(config.source.store_dir, config.source.mesh_dirs)
    row = store.row(int(sample) if sample.isdigit() else sample)
    generator = RolloutGenerator(config, store)
    prepared = generator.prepare(row)
    if prepared.skip_reason is not None:
        raise ConfigError(f"{row.sample_key}: no target to roll out: {prepared.skip_reason}")
    if not 0 <= target < len(prepared.targets):
        raise ConfigError(f"{row.sample_key}: target must be 0 to {len(prepared.targets) - 1}, got {target}")
    wanted = prepared.targets[target]
    if isinstance(wanted, RefusedTarget):
        raise ConfigError(f"{wanted.match.target.target_id}: gets no rollout: {wanted.reason} ({wanted.detail})")
    records = list(generator.records_of(replace(prepared, targets=(wanted,))))
    steps = [step for record in records for step in step_rows(record)]
    if as_json:
        print_json(steps)
    else:
        _show(wanted.match, steps)
    if plot is not None:
        from rollout_assets.reports.rollout_picture import plot_rollout

        scene = wanted.oracle_state.scene
        record = records[-1]
        plot_rollout(record, record.chains[0], scene.vertices, scene.faces, wanted.actor.points_world, plot)
        if not as_json:
            out.print(f"wrote {plot}", highlight=False)


def _only(config: CampaignConfig, recipe: str | None) -> CampaignConfig:
    if recipe is None:
        return config
    chosen = tuple(known for known in config.recipes if known.name == recipe)
    if not chosen:
        names = ", ".join(known.name for known in config.recipes)
        raise ConfigError(f"campaign {config.name} has no recipe {recipe!r}; it has {names}")
    return config.model_copy(update={"recipes": chosen})


def _show(match: TargetMatch, steps: Sequence[StepRow]) -> None:
    target = match.target
    out.print(
        f"target [bold]{target.target_id}[/]: {target.class_name}, score {target.score:.3f}, "
        f"{target.semidense_support_count} points, {match.status} with IoU {match.iou:.2f}",
        highlight=False,
        soft_wrap=True,
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
