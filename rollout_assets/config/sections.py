"""The sections of a campaign, one model per TOML table. A section's hash decides whether stored data is current."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from rollout_assets.config.cron import cron_expression
from rollout_assets.config.section import (
    ConfigSection,
    Count,
    Finite,
    Fraction,
    Natural,
    NonNegative,
    Number,
    Pixels,
    Positive,
    SmallCount,
    UsableLocation,
    Whole,
    hashed_when_set,
    unhashed,
)

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
SuspiciousKind = Literal[
    "valid_candidate_missing_label",
    "accuracy_worsens",
    "low_valid_fanout",
    "dominant_reason_of_shell",
    "high_score_invalid_gt_target",
    "selected_motion_outlier",
    "greedy_choice_not_best",
    "chosen_with_probability_near_zero",
    "gain_out_of_range",
    "equal_labels_in_step",
    "label_unstable_under_noise",
    "weight_concentrated",
    "zero_variance_feature",
    "empty_depth",
    "saturated_depth",
    "dominant_invalid_reason",
    "chain_loses_ground",
    "near_duplicate_views",
]


class SourceConfig(ConfigSection):
    """Where the recorded snippets are. None of it is hashed: the source's own manifest hash is."""

    store_dir: UsableLocation = unhashed(Path("source"), description="The VIN offline store: a folder or a URL.")
    mesh_dirs: tuple[UsableLocation, ...] = unhashed(
        (), description="Folders of scene meshes; empty: meshes/ in the store."
    )
    splits: tuple[Split, ...] = unhashed(("train", "val"), min_length=1, description="Splits to make rollouts for.")


class TargetConfig(ConfigSection):
    """Which object a rollout is about, chosen from what the actor sees."""

    protocol: Literal["v1_observed", "v0_gt_input"] = Field(
        "v1_observed", description="v0_gt_input picks from ground-truth boxes, for comparison only."
    )
    policy: Literal["greedy_top_k", "temperature_softmax_top_k", "all_eligible", "explicit"] = Field(
        "greedy_top_k", description="all_eligible: every eligible box; explicit: those of target_ids, eligible or not."
    )
    target_ids: tuple[Annotated[str, Field(min_length=1)], ...] = hashed_when_set(
        (), description="The targets of policy explicit, in order; ids as in a store's targets."
    )
    top_k: SmallCount = Field(3, description="Targets of a source row, at most.")
    temperature: Positive = Field(1.0, description="Softmax temperature of temperature_softmax_top_k.")
    min_confidence: Fraction = Field(0.2, description="Detections below this confidence are not eligible.")
    min_support: Count = Field(3, description="Points inside a box below which it is not eligible.")
    saturated_support: Count = Field(128, description="Points inside a box at which nothing is left to gain.")
    saturated_area_fraction: Annotated[Number, Field(gt=0, le=1)] = Field(
        0.05, description="Share of the image at which a box counts as fully visible."
    )
    visibility_without_projection: Fraction = Field(0.35, description="Visibility of a box that no camera sees.")
    require_projection: bool = Field(False, description="Pass over boxes that no camera sees, or only as a speck.")
    min_projected_area_px: NonNegative = Field(16.0, description="Area in the image below which a box is a speck.")
    min_match_iou: Annotated[Number, Field(gt=0, le=1)] = Field(
        0.1, description="Overlap with a ground-truth box of its class that a target needs for labels."
    )
    ambiguous_iou_margin: Fraction = Field(
        0.02, description="A lead over the second best box of at most this makes a match ambiguous."
    )
    require_reachable: bool = Field(
        True, description="Pass over boxes that the actor cannot turn to or come near enough to see."
    )

    @model_validator(mode="after")
    def _explicit(self) -> Self:
        if (self.policy == "explicit") != bool(self.target_ids):
            raise ValueError(
                'target_ids are the targets of policy = "explicit"; give both or neither, '
                f'got policy = "{self.policy}" and {len(self.target_ids)} target_ids'
            )
        twice = sorted(name for name, count in Counter(self.target_ids).items() if count > 1)
        if twice:
            raise ValueError(f"target_ids must be unique, got {', '.join(twice)} more than once")
        return self


class MixtureComponent(ConfigSection):
    """``count`` candidate views of one position mode and one gaze."""

    position: PositionMode = Field(description="Where these views stand.")
    orientation: Orientation = Field("target_point", description="Where they look.")
    count: SmallCount = Field(description="How many there are at every step.")


class CandidateRules(ConfigSection):
    """What makes a candidate view takeable for the actor."""

    max_step_m: Positive = Field(1.0, description="Longest step.")
    max_height_delta_m: Positive = Field(0.25, description="Largest change of height, up or down.")
    max_backward_m: NonNegative = Field(0.25, description="Longest step backwards.")
    max_yaw_deg: Annotated[Number, Field(gt=0, le=180)] = Field(70.0, description="Largest turn.")
    min_mesh_distance_m: NonNegative = Field(0.2, description="A view must be farther from every surface.")
    min_path_clearance_m: NonNegative = Field(
        0.1, description="The way to a view must keep at least this distance to every surface."
    )
    path_samples: Annotated[Whole, Field(ge=2, le=10_000)] = Field(
        32, description="Points of the way that are measured."
    )


DEFAULT_MIXTURE = (
    MixtureComponent(position="forward_local", count=24),
    MixtureComponent(position="target_bearing_local", count=24),
    MixtureComponent(position="lateral_target_bypass", count=12),
)


class CandidateConfig(ConfigSection):
    """The finite set of views offered at every step."""

    directions: Literal["power_spherical", "uniform_sphere"] = Field(
        "power_spherical", description="How directions of free positions are drawn."
    )
    kappa: NonNegative = Field(8.0, description="Concentration of power_spherical directions around forward.")
    radius_min_m: Positive = Field(0.25, description="Shortest distance of a position.")
    radius_max_m: Positive = Field(1.1, description="Longest distance of a position.")
    elevation_min_deg: Annotated[Number, Field(ge=-90, le=90)] = Field(-12.0, description="Lowest direction.")
    elevation_max_deg: Annotated[Number, Field(ge=-90, le=90)] = Field(18.0, description="Highest direction.")
    azimuth_deg: Annotated[Number, Field(gt=0, le=360)] = Field(100.0, description="Full width of the azimuth cap.")
    yaw_jitter_deg: Annotated[Number, Field(ge=0, le=180)] = Field(
        0.0, description="Half width of a random turn of the gaze."
    )
    pitch_jitter_deg: Annotated[Number, Field(ge=0, le=90)] = Field(
        0.0, description="Half width of a random tilt of the gaze."
    )
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

    width_px: Pixels = Field(48, description="Width of a rendered depth image.")
    height_px: Pixels = Field(48, description="Height of a rendered depth image.")
    znear_m: Positive = Field(0.001, description="Nearest depth.")
    zfar_m: Positive = Field(20.0, description="Farthest depth.")
    pixel_stride: Count = Field(1, description="Back-project every n-th pixel of every n-th row.")
    fusion_voxel_m: Annotated[Number, Field(ge=1e-5)] = Field(
        0.02, description="Points of one voxel count as one. Below 1e-5 m the grid is smaller than a room."
    )
    voxel_origin: Literal["half_voxel", "off_grid", "zero"] = Field(
        "half_voxel",
        description="Where the fusion grid lies; off_grid: whole millimetres inside voxels, zero: floors on borders.",
    )
    crop_margin_m: NonNegative = Field(0.05, description="Added to the target's box on every side.")
    crop_policy: Literal["clipped_surface", "vertex_in_box"] = Field(
        "clipped_surface", description="vertex_in_box: whole faces with a vertex in the box, as ARIA-NBV crops."
    )
    surface_samples: Count = Field(4096, description="Density of the clipped surface's samples: so many on its box.")
    face_weighting: Literal["area", "uniform"] = Field("area", description="uniform: every face counts the same.")
    simplify: Annotated[Number, Field(gt=0, lt=1)] | None = hashed_when_set(
        None, description="Share of every mesh's faces that is kept, below 1; none scores whole meshes. ARIA-NBV: 0.1."
    )
    distance: Literal["true", "pytorch3d"] = Field("true", description="pytorch3d: small triangles as their edges.")
    min_current_points: Count = Field(1, description="Points in the crop below which a target gets no label.")
    scene_labels: bool = Field(False, description="Also label the whole scene, not only the target.")
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = unhashed(
        "auto", description="auto takes a GPU if there is one."
    )
    batch_mib: Annotated[Count, Field(le=16_384)] = unhashed(
        512, description="Memory for one device batch; never changes a result. A device with less halves its batches."
    )

    @model_validator(mode="after")
    def _depth_range(self) -> Self:
        if self.zfar_m <= self.znear_m:
            raise ValueError(f"zfar_m must be > znear_m {self.znear_m}, got {self.zfar_m}")
        return self

    @property
    def crop_policy_name(self) -> str:
        """Name of the crop policy in the lineage and the targets of a store."""
        return {"clipped_surface": "gt_obb_clipped_surface_v1", "vertex_in_box": "gt_obb_oriented_any_vertex_v1"}[
            self.crop_policy
        ]

    @model_validator(mode="after")
    def _whole_faces(self) -> Self:
        if self.distance == "pytorch3d" and self.crop_policy != "vertex_in_box":
            raise ValueError(f'distance = "pytorch3d" needs crop_policy = "vertex_in_box", got "{self.crop_policy}"')
        return self


class SelectedDepthRetentionConfig(ConfigSection):
    """Depth images of selected views, kept as the actor's history."""

    enabled: bool = Field(True, description="Keep a depth image of every selected view.")
    width_px: Pixels = Field(240, description="Width of a kept image.")
    height_px: Pixels = Field(240, description="Height of a kept image.")
    chunk_steps: Count = Field(16, description="Images that are compressed together.")


class StoreConfig(ConfigSection):
    """Layout of the written store."""

    discount_gamma: Fraction = Field(1.0, description="Discount of later rewards in the training view.")
    chunk_rows: Count = Field(65_536, description="Rows of a table that are compressed together.")
    chunk_states: Count = Field(4_096, description="States of the training view that are compressed together.")
    dead_ends_in_training_view: bool = Field(False, description="Keep states without a takeable view in q_h.")


class ShardConfig(ConfigSection):
    """How source rows are divided into shards. Never changes a row, so it is not part of any hash."""

    rows_per_shard: Count = unhashed(4, description="Source rows that are built and retried together.")
    output_dir: UsableLocation = unhashed(
        Path("campaign"), description="Plan, shards and the promoted store live here: a folder or a URL."
    )


class RolloutSuspiciousQueryConfig(ConfigSection):
    """Thresholds used by suspicious_rollout_rows, and which kinds are errors. Never changes a row."""

    min_valid_candidates: Count = Field(3, description="A step with fewer takeable views is suspicious.")
    dominant_invalid_fraction: Fraction = Field(0.8, description="Share of a step's refused views with one reason.")
    dominant_shell_fraction: Fraction = Field(0.8, description="Share of all views of a step with one reason.")
    high_target_score: NonNegative = Field(0.5, description="A target with this score should have ground truth.")
    max_step_distance_m: NonNegative = Field(1.25, description="Longest step that a selected view should take.")
    max_height_delta_m: NonNegative = Field(0.6, description="Largest change of height that it should make.")
    max_backward_step_m: NonNegative = Field(0.35, description="Longest step backwards that it should take.")
    max_yaw_delta_deg: NonNegative = Field(85.0, description="Largest turn that it should make.")
    max_abs_gain: NonNegative = Field(1.0, description="Gains should lie within ± this.")
    worsening_tolerance: NonNegative = Field(1e-5, description="Share of its error by which a view may worsen it.")
    unstable_gain: NonNegative = Field(0.01, description="A gain beyond ± this should not rest on a few pixels.")
    unstable_support_px: Natural = Field(2, description="Pixels on the target that are too few.")
    min_half_weight_pieces: Count = Field(8, description="Pieces of surface that must hold half of its weight.")
    min_half_weight_area: Fraction = Field(0.1, description="Share of the area that must hold half of the weight.")
    min_selection_probability: Fraction = Field(1e-9, description="A chosen view should be at least as probable.")
    min_final_root_gain: Finite = Field(0.0, description="A chain that ends below has lost ground.")
    min_variance_targets: Count = Field(2, description="Fewer targets than that may well share a feature's value.")
    near_duplicate_m: NonNegative = Field(0.002, description="Views this close, and turned as little, are one.")
    near_duplicate_deg: NonNegative = Field(0.25, description="Views turned by less, and as close, are one.")
    min_valid_depth_fraction: Fraction = Field(0.01, description="A depth image with less is empty.")
    saturated_depth_fraction: Fraction = Field(0.5, description="Share of valid pixels near the far limit.")
    max_depth_images: Natural | None = Field(
        None, description="Depth images to look at, spread evenly; all by default."
    )
    errors: tuple[SuspiciousKind, ...] = Field((), description="Kinds whose findings are errors and fail checks.")


class AutomationConfig(ConfigSection):
    """When Dagster looks for new source rows, and how much it starts at once. Never changes a row."""

    nightly: Annotated[str, AfterValidator(cron_expression)] = unhashed(
        "0 3 * * *", description="When the schedule looks: minute, hour, day, month and weekday, in UTC."
    )
    check_up_to_date: bool = unhashed(True, description="Whether the check up_to_date runs by the clock.")
    up_to_date: Annotated[str, AfterValidator(cron_expression)] = unhashed(
        "0 6 * * *", description="When it does: minute, hour, day, month and weekday, in UTC."
    )
    shards_per_tick: Count = unhashed(
        200, description="Shards that one look of a sensor starts; the next look starts the rest."
    )
    look_every_s: Count = unhashed(30, description="Seconds between two looks of a sensor.")
    retry_after_minutes: NonNegative = unhashed(
        60.0, description="When a planning or promotion that failed is tried again, if nothing else has changed."
    )
    shards_per_run: Annotated[Count, Field(le=10_000)] = unhashed(
        16, description="Shards that one run of a backfill takes in turn; 1 gives each shard a run of its own."
    )
    overdue_days: Annotated[Positive, Field(ge=0.01, le=36_500)] = unhashed(
        30.0, description="Days after which a promoted store that nothing was promoted to is shown as overdue."
    )
    promotion_workers: Annotated[Count, Field(le=256)] = unhashed(
        1, description="Processes that merge shards side by side in a promotion; the result is the same."
    )


class RetentionConfig(ConfigSection):
    """What `campaign clean` leaves. Never changes a row, and never lets anything go that is still referred to."""

    versions: Count = unhashed(2, description="Newest promoted versions to keep; the current one always stays.")
    set_aside_days: NonNegative = unhashed(7.0, description="Days to keep what builds have set aside.")
    staging_days: NonNegative = unhashed(1.0, description="Days to keep what dead attempts have left.")
    replaced_plans: Natural = unhashed(5, description="Newest replaced plans to keep.")
    trainings: Natural = unhashed(3, description="Newest trainings to keep, beside the current and the evaluated one.")
    observation_days: NonNegative = unhashed(30.0, description="Days to keep observations that no training reads.")
    run_days: NonNegative = unhashed(
        30.0, description="Days to keep Dagster's runs that tell nothing current, and logs."
    )


Limits = tuple[Fraction, Fraction]
"""Where good ends, and where bad begins."""


class QualityConfig(ConfigSection):
    """How closely a finished store is examined. Never changes a stored byte, so it is not part of any hash."""

    min_valid_fanout: Count = unhashed(3, description="Valid views below which a step leaves nothing to choose from.")
    min_label_yield: Fraction = unhashed(0.95, description="Share of the valid views that must have a label.")

    second_opinions_per_split: Count = unhashed(16, description="Labels of each split that are measured a second time.")
    noise_m: Positive = unhashed(1e-7, description="Noise on a view's points under which a label must hold still.")
    max_noise_move: Positive = unhashed(1e-5, description="How far that noise may move a gain.")
    max_negative_share: Limits = unhashed((0.001, 0.01), description="Negative labels: good below, bad from there on.")
    one_point_gain: Positive = unhashed(0.02, description="A label hangs on points that stand for more gain each.")
    max_one_point_share: Limits = unhashed((0.01, 0.05), description="Such labels: good below, bad from there on.")
    weighting_targets: Count = unhashed(12, description="Targets that are measured again under both weightings.")
    min_weighting_agreement: Limits = unhashed(
        (0.9, 0.7), description="Rank correlation of both weightings: good above, bad below."
    )
