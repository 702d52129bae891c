"""One training: every setting that decides its weights, read from TOML and hashed like a campaign.

Where data lies and where it is computed is not hashed: the digests of the stores' manifests say what was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from rollout_assets.config.hashing import canonical_hash
from rollout_assets.config.network import NetworkConfig
from rollout_assets.config.observation import ObservationConfig
from rollout_assets.config.problems import problems_list
from rollout_assets.config.section import (
    ConfigSection,
    Count,
    Fraction,
    Natural,
    NonNegative,
    Number,
    Positive,
    Seed,
    SmallCount,
    UsableLocation,
    UsablePath,
    unhashed,
)
from rollout_assets.config.tables import merge_tables, resolve_paths
from rollout_assets.errors import ConfigError
from rollout_assets.parsing import expand_path, read_toml_file

Head = Literal["gain", "q"]
"""Which value of the network becomes the policy's score."""

OpenShare = Annotated[Number, Field(gt=0, lt=1)]


class ValidationConfig(ConfigSection):
    """Scenes of the training stores that are held out to stop by; the campaign's split val is for evaluation."""

    share: OpenShare = Field(0.15, description="Share of the scenes that are held out, by hash; at least one.")
    seed: Seed = Field(0, description="Another seed holds out other scenes.")
    stores: tuple[UsableLocation, ...] = unhashed(
        (), description="Stores to validate on instead; then no training scene is held out."
    )


class OptimizerConfig(ConfigSection):
    """AdamW with a warm-up, then a cosine down to a share of the learning rate."""

    learning_rate: Positive = Field(2e-3, description="Highest learning rate.")
    warmup_share: Fraction = Field(0.05, description="Share of all batches in which it rises from 0.")
    final_share: Fraction = Field(0.02, description="Share of the learning rate that is left at the end.")
    weight_decay: NonNegative = Field(0.01, description="Decay of weights, not of biases and norms.")
    max_gradient_norm: Positive = Field(1.0, description="Gradients that are longer are cut to this length.")


class LossConfig(ConfigSection):
    """What the network is told. Gains are compared with their state's mean, in units of their spread in training."""

    rank_weight: NonNegative = Field(1.0, description="Weight of the loss on the order of views, beside their values.")
    temperature: Positive = Field(0.3, description="Softness of that order, in units of the gains' spread.")
    huber: Positive = Field(2.0, description="Errors larger than this count linearly, in units of the gains' spread.")
    target_rate: Annotated[Number, Field(gt=0, le=1)] = Field(
        0.01, description='For head = "q": share by which the target network follows at every batch.'
    )


class TrainingSettings(ConfigSection):
    """Everything that decides a policy's weights, given the stores.

    A campaign's section ``[training]`` is one; its own promoted store and source come first.
    """

    stores: tuple[UsableLocation, ...] = unhashed(
        (), description="Rollout stores to train on; of a promoted store, its split train is taken."
    )
    sources: tuple[UsableLocation, ...] = unhashed(
        (), description="Source stores that the rollouts began from; every store finds its own."
    )
    head: Head = Field("gain", description="gain: of this view alone; q: of all views from this one on.")
    seed: Seed = Field(0, description="Decides first weights, order, dropout and augmentation.")
    batch_size: SmallCount = Field(64, description="States in a batch.")
    epochs: Count = Field(20, description="Epochs at most.")
    patience: Count = Field(6, description="Epochs without a better validation after which training stops.")
    max_minutes: Positive | None = Field(
        None, description="Training ends with the epoch in which this is reached; then weights depend on the machine."
    )
    homes: Count | None = Field(None, description="Train on so many scenes only, for learning curves.")
    distinct_states: bool = Field(
        True, description="Count states with the same target and the same views taken once, if only gains are learned."
    )
    augment: bool = Field(True, description="Also show the mirror image of a state, where the network allows it.")
    threads: SmallCount = Field(2, description="Threads that compute; another number gives other roundings.")
    observation: ObservationConfig = ObservationConfig()
    network: NetworkConfig = NetworkConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    loss: LossConfig = LossConfig()
    validation: ValidationConfig = ValidationConfig()
    device: str = unhashed("cpu", pattern=r"^(cpu|cuda(:\d+)?|auto)$", description="cpu, cuda, cuda:N or auto.")
    workers: Natural = unhashed(0, description="Processes that read ahead.")
    cache_dir: UsablePath | None = unhashed(
        None, description="Where observations are kept for the next epoch or training; default: in the data home."
    )
    resume_batches: Count = unhashed(200, description="Batches after which what is needed to go on is written.")

    @property
    def config_hash(self) -> str:
        """Digest of everything that decides the weights, given the stores."""
        return canonical_hash(self.hashable())


class TrainingConfig(TrainingSettings):
    """A training, and the folder that it writes to."""

    output_dir: UsablePath = unhashed(Path("policy"), description="Where the checkpoint and what belongs to it go.")


def load_training(path: Path | None, settings: Mapping[str, Any] | None = None) -> TrainingConfig:
    """A training from a TOML file, or from defaults, with keys of ``settings`` over it.

    Relative paths in a file mean relative to that file.
    """
    where = "training" if path is None else str(path)
    values: dict[str, Any] = {} if path is None else _read(expand_path(path))
    try:
        return TrainingConfig.model_validate(merge_tables(values, settings or {}))
    except ValidationError as error:
        raise ConfigError(problems_list(where, error, TrainingConfig)) from None


def _read(path: Path) -> dict[str, Any]:
    values = read_toml_file(path, "rollout-assets train --example")
    resolve_training_paths(values, path.resolve().parent)
    return values


def resolve_training_paths(table: dict[str, Any], base: Path) -> None:
    """Let the relative paths of a training's table start at ``base``."""
    resolve_paths(table, ("stores", "sources", "output_dir", "cache_dir"), base)
    if isinstance(table.get("validation"), dict):
        resolve_paths(table["validation"], ("stores",), base)
