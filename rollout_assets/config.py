"""Campaign configuration: one frozen pydantic tree, read from TOML, hashed canonically.

Every section is a ``ConfigSection``: unknown keys are refused and values are checked with the value in the message.
A hash is SHA-256 over canonical JSON (sorted keys, no whitespace, every default written out). Fields that cannot change
a stored byte, such as paths, devices and batch sizes, are marked ``unhashed`` and left out.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from rollout_assets.errors import ConfigError

DEMO_CAMPAIGN = "demo"
"""Name of the campaign that ships with the package and is used when none is given."""

Split = Literal["train", "val"]
PositionMode = Literal[
    "upper_bound_free_shell",
    "forward_local",
    "target_bearing_local",
    "lateral_target_bypass",
    "local_refinement",
    "revisit_backtrack",
]
Orientation = Literal["forward_rig", "radial_away", "radial_towards", "target_point"]
SelectionPolicy = Literal[
    "farthest_from_history",
    "farthest_from_reference",
    "random",
    "random_valid",
    "oracle_greedy",
    "temperature_softmax",
]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Slug = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=64)]


def unhashed(default: Any, **kwargs: Any) -> Any:
    """A field that cannot change a stored byte and therefore stays out of every hash."""
    return Field(default, json_schema_extra={"unhashed": True}, **kwargs)


class ConfigSection(BaseModel):
    """Base of all configuration models."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    def hashable(self) -> dict[str, Any]:
        """Plain JSON values of every field that decides stored bytes."""
        return {
            name: _hashable(getattr(self, name))
            for name, field in type(self).model_fields.items()
            if not (isinstance(field.json_schema_extra, Mapping) and field.json_schema_extra.get("unhashed"))
        }


class SourceConfig(ConfigSection):
    """Where the recorded snippets are. None of it is hashed: the source's own manifest hash is."""

    store_dir: Path = unhashed(Path("source"), description="The VIN offline store.")
    mesh_dirs: tuple[Path, ...] = unhashed((), description="Where scene meshes lie; empty: meshes/ beside the store.")
    splits: tuple[Split, ...] = unhashed(("train", "val"), min_length=1, description="Splits to make rollouts for.")


class TargetConfig(ConfigSection):
    """Which object a rollout is about, chosen from what the actor sees."""

    protocol: Literal["v1_observed", "v0_gt_input"] = "v1_observed"
    policy: Literal["greedy_top_k", "temperature_softmax_top_k"] = "greedy_top_k"
    top_k: Count = 3
    temperature: Positive = Field(1.0, description="Softmax temperature of temperature_softmax_top_k.")
    min_confidence: Fraction = 0.2
    min_support: Count = Field(3, description="Points inside a box below which it is not eligible.")
    saturated_support: Count = Field(128, description="Points inside a box at which nothing is left to gain.")
    saturated_area_fraction: Annotated[float, Field(gt=0, le=1)] = 0.05
    visibility_without_projection: Fraction = 0.35
    require_projection: bool = False
    min_projected_area_px: NonNegative = 16.0
    min_match_iou: Annotated[float, Field(gt=0, le=1)] = 0.1
    ambiguous_iou_margin: Fraction = 0.02


class MixtureComponent(ConfigSection):
    """``count`` candidate views of one position mode and one gaze."""

    position: PositionMode
    orientation: Orientation = "target_point"
    count: Count


class CandidateRules(ConfigSection):
    """What makes a candidate view takeable for the actor."""

    max_step_m: Positive = 1.0
    max_height_delta_m: Positive = 0.25
    max_backward_m: NonNegative = 0.25
    max_yaw_deg: Annotated[float, Field(gt=0, le=180)] = 70.0
    min_mesh_distance_m: NonNegative = 0.2
    min_path_clearance_m: NonNegative = 0.1
    path_samples: Annotated[int, Field(ge=2)] = 32


DEFAULT_MIXTURE = (
    MixtureComponent(position="forward_local", count=24),
    MixtureComponent(position="target_bearing_local", count=24),
    MixtureComponent(position="lateral_target_bypass", count=12),
)


class CandidateConfig(ConfigSection):
    """The finite set of views offered at every step."""

    directions: Literal["power_spherical", "uniform_sphere"] = "power_spherical"
    kappa: NonNegative = Field(8.0, description="Concentration of power_spherical directions around forward.")
    radius_min_m: Positive = 0.25
    radius_max_m: Positive = 1.1
    elevation_min_deg: Annotated[float, Field(ge=-90, le=90)] = -12.0
    elevation_max_deg: Annotated[float, Field(ge=-90, le=90)] = 18.0
    azimuth_deg: Annotated[float, Field(gt=0, le=360)] = Field(100.0, description="Full width of the azimuth cap.")
    yaw_jitter_deg: Annotated[float, Field(ge=0, le=180)] = 0.0
    pitch_jitter_deg: Annotated[float, Field(ge=0, le=90)] = 0.0
    mixture: tuple[MixtureComponent, ...] = Field(DEFAULT_MIXTURE, min_length=1)
    rules: CandidateRules = CandidateRules()

    @property
    def num_candidates(self) -> int:
        """Views in one shell."""
        return sum(component.count for component in self.mixture)

    @model_validator(mode="after")
    def _ranges(self) -> Self:
        if self.radius_max_m < self.radius_min_m:
            raise ValueError(f"radius_max_m must be >= radius_min_m {self.radius_min_m}, got {self.radius_max_m}")
        if self.elevation_max_deg < self.elevation_min_deg:
            lowest = f"elevation_min_deg {self.elevation_min_deg}"
            raise ValueError(f"elevation_max_deg must be >= {lowest}, got {self.elevation_max_deg}")
        return self


class OracleConfig(ConfigSection):
    """How much a view is worth: depth, points, fusion, error."""

    width_px: Count = 48
    height_px: Count = 48
    znear_m: Positive = 0.001
    zfar_m: Positive = 20.0
    pixel_stride: Count = Field(1, description="Back-project every n-th pixel of every n-th row.")
    fusion_voxel_m: Positive = 0.02
    crop_margin_m: NonNegative = 0.05
    face_weighting: Literal["uniform", "area"] = "uniform"
    distance: Literal["true", "pytorch3d"] = Field("true", description="pytorch3d: small triangles as their edges.")
    min_current_points: Count = Field(1, description="Points in the crop below which a target gets no label.")
    scene_labels: bool = Field(False, description="Also label the whole scene, not only the target.")
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = unhashed("auto")
    batch_mib: Count = unhashed(512, description="Memory for one device batch; never changes a result.")

    @model_validator(mode="after")
    def _depth_range(self) -> Self:
        if self.zfar_m <= self.znear_m:
            raise ValueError(f"zfar_m must be > znear_m {self.znear_m}, got {self.zfar_m}")
        return self


class StochasticBranching(ConfigSection):
    """A branch count drawn per step: ``counts[i]`` with probability ``probabilities[i]``."""

    counts: tuple[Count, ...] = Field(min_length=1)
    probabilities: tuple[Fraction, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _distribution(self) -> Self:
        if len(self.counts) != len(self.probabilities):
            raise ValueError(f"{len(self.counts)} counts need as many probabilities, got {len(self.probabilities)}")
        total = sum(self.probabilities)
        if abs(total - 1.0) > 1e-9:
            raise ValueError(f"probabilities must sum to 1, got {total}")
        return self


def _branching_kind(value: Any) -> str:
    if isinstance(value, (Mapping, StochasticBranching)):
        return "stochastic"
    return "schedule" if isinstance(value, (list, tuple)) else "constant"


Branching = Annotated[
    Annotated[Count, Tag("constant")]
    | Annotated[tuple[Count, ...], Field(min_length=1), Tag("schedule")]
    | Annotated[StochasticBranching, Tag("stochastic")],
    Discriminator(_branching_kind),
]


class RolloutRecipeConfig(ConfigSection):
    """One rollout policy materialised into the replay store."""

    name: Slug
    policy: SelectionPolicy
    horizon: Count = 2
    branch: Branching = Field(1, description="A constant, a schedule whose last entry repeats, or random counts.")
    beam_width: Count | None = Field(None, description="Chains kept after each step; none keeps all.")
    temperature: Positive = 1.0
    min_history_distance_m: NonNegative = 0.0
    min_sibling_distance_m: NonNegative = 0.0


DEFAULT_RECIPES = (
    RolloutRecipeConfig(name="random_valid", policy="random_valid"),
    RolloutRecipeConfig(name="oracle_greedy", policy="oracle_greedy"),
    RolloutRecipeConfig(name="oracle_lookahead", policy="oracle_greedy", branch=2, beam_width=2),
    RolloutRecipeConfig(name="temperature_softmax", policy="temperature_softmax", branch=2, beam_width=2),
)


class SelectedDepthRetentionConfig(ConfigSection):
    """Depth images of selected views, kept as the actor's history."""

    enabled: bool = True
    width_px: Count = 240
    height_px: Count = 240
    chunk_steps: Count = 16


class StoreConfig(ConfigSection):
    """Layout of the written store."""

    discount_gamma: Fraction = 1.0
    chunk_rows: Count = 65_536
    chunk_states: Count = 4_096


class ShardConfig(ConfigSection):
    """How source rows are divided into shards. Never changes a row, so it is not part of any hash."""

    rows_per_shard: Count = unhashed(4)
    output_dir: Path = unhashed(Path("campaign"), description="Plan, shards and the promoted store live here.")


class CampaignConfig(ConfigSection):
    """Everything that decides what a campaign writes."""

    name: Slug
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    source: SourceConfig = SourceConfig()
    targets: TargetConfig = TargetConfig()
    candidates: CandidateConfig = CandidateConfig()
    oracle: OracleConfig = OracleConfig()
    recipes: tuple[RolloutRecipeConfig, ...] = DEFAULT_RECIPES
    selected_depth: SelectedDepthRetentionConfig = SelectedDepthRetentionConfig()
    store: StoreConfig = StoreConfig()
    shards: ShardConfig = ShardConfig()

    @field_validator("recipes")
    @classmethod
    def _unique_names(cls, recipes: tuple[RolloutRecipeConfig, ...]) -> tuple[RolloutRecipeConfig, ...]:
        if not recipes:
            raise ValueError("a campaign needs at least one recipe, got none")
        names = [recipe.name for recipe in recipes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"recipe names must be unique, got {', '.join(twice)} more than once")
        return recipes

    @property
    def candidate_config_hash(self) -> str:
        """Digest of what decides which views are offered and which of them may be taken."""
        return canonical_hash({"candidates": self.candidates.hashable()})

    @property
    def oracle_config_hash(self) -> str:
        """Digest of what decides a label."""
        return canonical_hash({"oracle": self.oracle.hashable()})

    @property
    def rollout_config_hash(self) -> str:
        """Digest of what decides targets, selections and chains."""
        recipes = [recipe.hashable() for recipe in self.recipes]
        return canonical_hash({"seed": self.seed, "targets": self.targets.hashable(), "recipes": recipes})

    @property
    def writer_config_hash(self) -> str:
        """Digest of everything that decides a shard's bytes, given its source rows."""
        return canonical_hash(
            {
                "candidate": self.candidate_config_hash,
                "oracle": self.oracle_config_hash,
                "rollout": self.rollout_config_hash,
                "selected_depth": self.selected_depth.hashable(),
                "store": self.store.hashable(),
            }
        )

    def hashes(self) -> dict[str, str]:
        """All four digests by name."""
        return {
            "candidate": self.candidate_config_hash,
            "oracle": self.oracle_config_hash,
            "rollout": self.rollout_config_hash,
            "writer": self.writer_config_hash,
        }


def load_campaign(name_or_path: str | Path) -> CampaignConfig:
    """A campaign by the name of a shipped one (``demo``) or by the path of a TOML file.

    Relative paths in a file mean relative to that file; those of a shipped campaign lie under ``data_home()``.
    """
    text, where, base = _read(name_or_path)
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: not valid TOML: {error}") from None
    try:
        return _with_paths(CampaignConfig.model_validate(raw), base)
    except ValidationError as error:
        problems = [_problem(detail) for detail in error.errors(include_url=False)]
        raise ConfigError("\n  - ".join([f"{where}: {len(problems)} problem(s)", *problems])) from None


def shipped_campaigns() -> tuple[str, ...]:
    """Names of the campaigns inside the package."""
    folder = resources.files("rollout_assets") / "campaigns"
    return tuple(sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".toml")))


def data_home() -> Path:
    """Where runtime data goes: ``$DAGSTER_HOME``, or ``dagster_home`` of the checkout, or of the working directory."""
    if home := os.environ.get("DAGSTER_HOME"):
        return Path(home).resolve()
    checkout = Path(__file__).resolve().parent.parent
    base = checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()
    return base / "dagster_home"


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no whitespace, ASCII, shortest round-trip floats; NaN and infinity are refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def canonical_hash(value: Any) -> str:
    """SHA-256 of ``canonical_json(value)`` in hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def _hashable(value: Any) -> Any:
    if isinstance(value, ConfigSection):
        return value.hashable()
    if isinstance(value, tuple):
        return [_hashable(item) for item in value]
    return value


def _read(name_or_path: str | Path) -> tuple[str, str, Path]:
    """Text, a name for messages, and the folder that relative paths start from."""
    if str(name_or_path) in shipped_campaigns():
        text = (resources.files("rollout_assets") / "campaigns" / f"{name_or_path}.toml").read_text("utf-8")
        return text, f"campaign {name_or_path}", data_home() / str(name_or_path)
    path = Path(name_or_path)
    try:
        return path.read_text("utf-8"), str(path), path.resolve().parent
    except FileNotFoundError:
        shipped = ", ".join(shipped_campaigns())
        raise ConfigError(f"{path}: no such campaign file, and no shipped campaign of that name ({shipped})") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def _with_paths(config: CampaignConfig, base: Path) -> CampaignConfig:
    source = config.source.model_copy(
        update={
            "store_dir": base / config.source.store_dir.expanduser(),
            "mesh_dirs": tuple(base / folder.expanduser() for folder in config.source.mesh_dirs),
        }
    )
    shards = config.shards.model_copy(update={"output_dir": base / config.shards.output_dir.expanduser()})
    return config.model_copy(update={"source": source, "shards": shards})


def _problem(error: ErrorDetails) -> str:
    loc = [part for part in error["loc"] if part not in ("constant", "schedule", "stochastic")]
    key = _key(loc)
    if error["type"] == "extra_forbidden":
        known = _known_keys(loc[:-1])
        close = difflib.get_close_matches(str(loc[-1]), known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(known)}"
        return f"{key}: unknown key; {hint}"
    if error["type"] == "missing":
        return f"{key}: required, but not given"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{key}: {message}" if key else message
    return f"{key} = {json.dumps(error['input'], default=str)}: {message[:1].lower()}{message[1:]}"


def _key(loc: list[int | str]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")


def _known_keys(loc: list[int | str]) -> list[str]:
    model: type[BaseModel] = CampaignConfig
    for part in (part for part in loc if isinstance(part, str)):
        model = next(kind for kind in _models_in(model.model_fields[part].annotation))
    return list(model.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models_in(argument)
