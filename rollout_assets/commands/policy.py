"""`rollout-assets train` and `rollout-assets policy`: from promoted stores to a checkpoint, and what that says."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.commands.settings import read_settings
from rollout_assets.commands.terminal import (
    AsJson,
    green,
    print_json,
    print_table,
    progress_bars,
    say,
    warn,
    yellow,
)
from rollout_assets.config import commented_toml, load_campaign
from rollout_assets.config.training import TrainingConfig, load_training
from rollout_assets.errors import ConfigError
from rollout_assets.files import file_sha256
from rollout_assets.inspection.provenance import recorded_campaign
from rollout_assets.interruption import INTERRUPTED
from rollout_assets.learning.checkpoints import PolicyCard, load_policy
from rollout_assets.learning.training.data import training_store
from rollout_assets.learning.training.run import TrainingResult, read_metrics, train_policy
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

app = typer.Typer(help="Look at and check checkpoints of policies.", no_args_is_help=True)

CURVES_NAME = "curves.html"

_SHOWN_SCENES = 6

_HEAD = """\
# A training for 'rollout-assets train FILE': every setting with its default. Change what you need, and remove the
# rest if you like. Relative paths start at this file. Several stores are trained on together: those of two rounds.
"""


def train(
    file: Annotated[
        Path | None,
        typer.Argument(help="A training's TOML file; without it, defaults are used.", metavar="CONFIG.toml"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for checkpoint, metrics and curves; default: output_dir of the file."),
    ] = None,
    campaigns: Annotated[
        list[str] | None,
        typer.Option(
            "--campaign",
            "-c",
            help="Train on the promoted split train of this campaign too; may be given again.",
            metavar="FILE|NAME",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Set any key of the TOML file; may be given again.", metavar="KEY=VALUE"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a training that was stopped.")] = False,
    example: Annotated[
        bool, typer.Option("--example", help="Print a TOML file to start from, all keys in it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a policy on promoted stores: a checkpoint, metrics for each epoch, and curves as a page.

    Some scenes of the stores are held out, and training stops when choices there get no better. Stop it at will, also
    by killing it: `--resume` goes on, and on a CPU the weights are those of a training that was never stopped, to the
    bit.
    """
    if example:
        typer.echo(example_training(), nl=False)
        return
    config = _with_campaigns(load_training(file, read_settings(settings)), campaigns or [])
    folder = config.output_dir if output is None else output
    try:
        with progress_bars() as progress:
            result = train_policy(config, folder, resume=resume, progress=progress)
    except KeyboardInterrupt:
        warn(yellow("interrupted"), "; --resume goes on from the last resume point")
        raise typer.Exit(INTERRUPTED) from None
    page = _write_curves(config, result)
    if as_json:
        print_json(result)
    else:
        _show_result(result, page)


def example_training() -> str:
    """A commented TOML file to start from."""
    config = TrainingConfig(stores=(Path("campaign/rollouts.zarr"),), sources=(Path("homes"),))
    return commented_toml(config, _HEAD)


def _with_campaigns(config: TrainingConfig, names: list[str]) -> TrainingConfig:
    """The training with the stores and sources of some campaigns too, and with the sources that its stores record."""
    loaded = [load_campaign(name) for name in names]
    promoted = [CampaignLayout(campaign.shards.output_dir).promoted for campaign in loaded]
    for name, store in zip(names, promoted, strict=True):
        if not store.exists():
            raise ConfigError(f"{store}: not there yet; 'rollout-assets campaign promote -c {name}' makes it")
    stores = (*config.stores, *promoted)
    if not stores:
        raise ConfigError("nothing to train on; give a training's file with stores, or a campaign with -c")
    sources = [*config.sources, *(campaign.source.store_dir for campaign in loaded)]
    if not config.sources:
        sources += [found for store in (*config.stores, *config.validation.stores) if (found := _source_of(store))]
    return config.model_copy(update={"stores": stores, "sources": tuple(dict.fromkeys(sources))})


def _source_of(store: Path) -> Path | None:
    campaign = recorded_campaign(RolloutZarrStoreReader(training_store(store)))
    return None if campaign is None else campaign.source.store_dir


def _write_curves(config: TrainingConfig, result: TrainingResult) -> Path | None:
    """The page beside the checkpoint, where the packages that draw it are installed."""
    if find_spec("plotly") is None:
        return None
    from rollout_assets.reports.training_page import write_training_page  # needs an extra that training does not

    facts: dict[str, Any] = {
        "checkpoint": result.checkpoint_sha256,
        "training config": config.config_hash,
        "head": config.head,
        "stopped by": result.stopped_by,
        "minutes": result.seconds / 60,
        "stores": ", ".join(map(str, config.stores)),
    }
    return write_training_page(result.folder / CURVES_NAME, "Training", facts, read_metrics(result.folder))


def _show_result(result: TrainingResult, page: Path | None) -> None:
    row = (
        result.epochs,
        result.best_epoch,
        f"{result.validation['validation_share_of_headroom']:.1%}",
        f"{result.validation['validation_first_share']:.1%}",
        f"{result.seconds / 60:.1f} min",
        result.stopped_by,
    )
    columns = ("epochs", "best epoch", "share of headroom", "at first steps", "time", "stopped by")
    print_table("training", columns, [row])
    say(green(result.checkpoint), f": the policy, {result.checkpoint_sha256[:16]}")
    if page is not None:
        say(green(page), ": its curves")


@app.callback()
def policy() -> None:
    """Look at and check checkpoints of policies."""


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A policy's checkpoint.", metavar="POLICY.safetensors")],
    as_json: AsJson = False,
) -> None:
    """Load a checkpoint and print its card; one that cannot be used is refused with the reason."""
    card, digest = load_policy(file).card, file_sha256(file.expanduser())
    if as_json:
        print_json({"sha256": digest, **card.model_dump(mode="json")})
    else:
        print_table(str(file), ("what", "value"), list(_rows(card, digest).items()))


def _rows(card: PolicyCard, digest: str) -> dict[str, Any]:
    return {
        "sha256": digest,
        "kind": f"{card.kind}, version {card.format_version}, written by {card.package_version}",
        "score": f"learned_{card.head}",
        "parameters": f"{card.parameters:,}",
        "network": _settings(card.network.model_dump()),
        "observation": _settings(card.observation.model_dump()),
        "observation layout": card.observation_layout,
        "views of a state in training": str(card.candidates),
        "training config": card.training_config_hash,
        "stores": ", ".join(card.stores),
        "scenes": _names(card.scenes),
        "scenes held out": _names(card.validation_scenes),
        **{name.replace("_", " "): f"{value:.4g}" for name, value in card.metrics.items()},
    }


def _settings(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _names(scenes: tuple[str, ...]) -> str:
    more = len(scenes) - _SHOWN_SCENES
    return f"{len(scenes)}: {', '.join(scenes[:_SHOWN_SCENES])}{f' and {more} more' if more > 0 else ''}"
