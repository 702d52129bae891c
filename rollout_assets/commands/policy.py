"""`rollout-assets train` and `rollout-assets policy`: from promoted stores to a checkpoint, and what that says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.commands.opened_store import refuse_missing_store
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
from rollout_assets.config import CampaignConfig, commented_toml, load_campaign, merge_tables
from rollout_assets.config.training import TrainingConfig, load_training
from rollout_assets.errors import ConfigError, PolicyRefused
from rollout_assets.files import file_sha256
from rollout_assets.interruption import INTERRUPTED
from rollout_assets.parsing import expand_path
from rollout_assets.progress import ProgressSink

if TYPE_CHECKING:
    from rollout_assets.learning.checkpoints import PolicyCard
    from rollout_assets.learning.training.run import TrainingResult
    from rollout_assets.rounds.training import CampaignTraining

app = typer.Typer(help="Look at and check checkpoints of policies.", no_args_is_help=True)

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
    bit. A campaign with a section [training] is trained as that says; without `--out` in its own folder, as Dagster
    does, where the same command goes on by itself.
    """
    if example:
        typer.echo(example_training(), nl=False)
        return
    loaded = {name: load_campaign(name) for name in campaigns or []}
    asking = _asking(loaded) if file is None else None
    if in_its_own_folder := asking is not None and output is None:
        chosen = load_campaign(asking, {"training": read_settings(settings)})
    else:
        config = _training(file, loaded, asking, read_settings(settings))
        _refuse_missing_stores(config, loaded)
    from rollout_assets.rounds.training import train_campaign_policy, with_campaigns

    try:
        with progress_bars() as progress:
            if in_its_own_folder:
                training = train_campaign_policy(chosen, progress)
            else:
                config = with_campaigns(config, loaded)
                training = _train(config, output or config.output_dir, resume, progress)
    except KeyboardInterrupt:
        warn(yellow("interrupted"), "; --resume goes on from the last resume point")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json(training.result)
    else:
        _show_result(training.result, training.curves)


def _asking(campaigns: Mapping[str, CampaignConfig]) -> str | None:
    """The campaign whose section [training] says how to train; of several, nobody could tell which counts."""
    asking = [name for name, campaign in campaigns.items() if campaign.training is not None]
    if len(asking) > 1:
        raise ConfigError(f"{' and '.join(asking)} have a section [training] each; give the settings as CONFIG.toml")
    return asking[0] if asking else None


def _training(
    file: Path | None, campaigns: Mapping[str, CampaignConfig], asking: str | None, settings: dict[str, Any]
) -> TrainingConfig:
    """The settings of a file, of the campaign that asks for a training, or the defaults, and options over them."""
    section = None if asking is None else campaigns[asking].training
    values = {} if section is None else section.model_dump(mode="json", exclude_none=True)
    return load_training(file, merge_tables(values, settings))


def _refuse_missing_stores(config: TrainingConfig, campaigns: Mapping[str, CampaignConfig]) -> None:
    """Refuse a training without stores, or with a folder that is not there, before torch is imported."""
    if not config.stores and not campaigns:
        raise ConfigError("nothing to train on; give a training's file with stores, or a campaign with -c")
    for name, layout in {name: CampaignLayout.of(campaign) for name, campaign in campaigns.items()}.items():
        if layout.url is None and not layout.promoted.exists():
            raise ConfigError(f"{layout.promoted}: not there yet; 'rollout-assets campaign promote -c {name}' makes it")
    for store in (*config.stores, *config.validation.stores):
        refuse_missing_store(store)


def _train(config: TrainingConfig, folder: Path, resume: bool, progress: ProgressSink) -> CampaignTraining:
    from rollout_assets.learning.training.run import train_policy
    from rollout_assets.rounds.training import CampaignTraining, write_curves

    result = train_policy(config, folder, resume=resume, progress=progress)
    return CampaignTraining(config, result, write_curves(config, result))


def example_training() -> str:
    """A commented TOML file to start from."""
    config = TrainingConfig(stores=(Path("campaign/rollouts.zarr"),), sources=(Path("homes"),))
    return commented_toml(config, _HEAD)


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
    if not (place := expand_path(file)).exists():
        raise PolicyRefused(f"{place}: there is no such file")
    from rollout_assets.learning.checkpoints import load_policy

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
