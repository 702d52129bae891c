"""`rollout-assets policy`: what a checkpoint says about itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rollout_assets.commands.terminal import AsJson, print_json, print_table
from rollout_assets.files import file_sha256
from rollout_assets.learning.checkpoints import PolicyCard, load_policy

app = typer.Typer(help="Look at and check checkpoints of policies.", no_args_is_help=True)

_SHOWN_SCENES = 6


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
