"""The slow, obvious twins of the tables: plain Python over rows, one at a time."""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import fmean, pstdev
from typing import Any

from rollout_assets.rollouts import decode_invalid_reason, decode_position_id, decode_strategy_id
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader

Row = dict[str, Any]


class PlainStore:
    """A store as lists of dicts."""

    def __init__(self, reader: RolloutZarrStoreReader) -> None:
        self.sources = reader.table("sources", decode=True).to_dicts()
        self.targets = reader.table("targets", decode=True).to_dicts()
        self.rollouts = reader.table("rollouts", decode=True).to_dicts()
        self.steps = reader.table("steps").to_dicts()
        self.candidates = reader.table("candidates", decode=True).to_dicts()
        self.diagnostics = reader.table("candidate_diagnostics").to_dicts()

    def shell(self, step: Row) -> list[Row]:
        return [row for row in self.candidates if row["step_row_id"] == step["step_row_id"]]

    def recipe(self, rollout: Row) -> str:
        return rollout["rollout_id"].split("-", 3)[3].rsplit("-", 1)[0]


def waterfall(store: PlainStore) -> list[tuple[str, int]]:
    masks = ("actor_action_mask", "oracle_label_mask", "q_train_mask", "selected_mask")
    counts = [sum(1 for row in store.candidates if row[mask]) for mask in masks]
    stages = ("full_shell", "actor_valid", "oracle_label", "q_train", "selected")
    return list(zip(stages, [len(store.candidates), *counts], strict=True))


def groups(store: PlainStore, group_by: str) -> dict[Any, Row]:
    def name(row: Row) -> Any:
        rollout = store.rollouts[row["rollout_row_id"]]
        target = store.targets[rollout["target_row_id"]]
        return {
            "position": decode_position_id(row["position_id"]),
            "strategy": decode_strategy_id(row["strategy_id"]),
            "reason": decode_invalid_reason(row["primary_invalid_reason"]),
            "mixture": f"component_{row['mixture_id']}",
            "mixture_id": row["mixture_id"],
            "step_index": row["step_index"],
            "score_source": row["score_source_id"],
            "policy": rollout["policy_id"],
            "recipe": store.recipe(rollout),
            "scene": rollout["scene_id"],
            "split": rollout["split_id"],
            "target_class": target["target_class_name_id"],
            "target": target["target_id"],
            "target_id": target["target_id"],
            "target_row_id": rollout["target_row_id"],
        }[group_by]

    found: dict[Any, list[Row]] = defaultdict(list)
    for row in store.candidates:
        found[name(row)].append(row)
    return {key: _group(rows) for key, rows in found.items()}


def _group(rows: list[Row]) -> Row:
    gains = sorted(row["target_root_gain"] for row in rows if row["oracle_label_mask"])
    return {
        "count": len(rows),
        "actor_valid": sum(row["actor_action_mask"] for row in rows),
        "q_train": sum(row["q_train_mask"] for row in rows),
        "selected": sum(row["selected_mask"] for row in rows),
        "root_gain_mean": fmean(gains) if gains else None,
        "root_gain_std": pstdev(gains) if gains else None,
        "root_gain_min": gains[0] if gains else None,
        "root_gain_median": _quantile(gains, 0.5) if gains else None,
        "root_gain_q75": _quantile(gains, 0.75) if gains else None,
    }


def _quantile(values: list[float], q: float) -> float:
    place = q * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def objectives(store: PlainStore) -> list[Row]:
    paths: dict[int, tuple[int, ...]] = {}
    for step in store.steps:
        before = [
            s
            for s in store.steps
            if s["rollout_row_id"] == step["rollout_row_id"] and s["step_index"] < step["step_index"]
        ]
        paths[step["step_row_id"]] = tuple(s["selected_shell_index"] for s in before)

    def state(step: Row) -> tuple[Any, ...]:
        rollout = store.rollouts[step["rollout_row_id"]]
        return rollout["target_row_id"], store.recipe(rollout), paths[step["step_row_id"]]

    lines = []
    for step in store.steps:
        shell = store.shell(step)
        gains = sorted((row["target_root_gain"] for row in shell if row["oracle_label_mask"]), reverse=True)
        p = [row["selection_probabilities"] for row in shell if row["selection_probabilities"] > 0]
        chosen = next((row for row in shell if row["selected_mask"]), None)
        rollout = store.rollouts[step["rollout_row_id"]]
        here = [other for other in store.steps if state(other) == state(step)]
        lines.append(
            {
                "step_row_id": step["step_row_id"],
                **parameters(rollout),
                "chain_id": rollout["chain_id"],
                "invalid_fraction": sum(not row["actor_action_mask"] for row in shell) / len(shell),
                "labelled": len(gains),
                "best_root_gain": gains[0] if gains else None,
                "second_root_gain": gains[1] if len(gains) > 1 else None,
                "mean_root_gain": fmean(gains) if gains else None,
                "entropy": -sum(x * math.log(x) for x in p) if p else None,
                "marginal_target_root_gain": chosen["target_root_gain"] if chosen else None,
                "marginal_scene_root_gain": _given(chosen["scene_root_gain"]) if chosen else None,
                "marginal_scene_rri": _given(chosen["scene_rri"]) if chosen else None,
                "selected_sampler_probability": chosen["sampler_probability"] if chosen else None,
                "selected_mixture": f"component_{chosen['mixture_id']}" if chosen else None,
                "selected_reason": decode_invalid_reason(chosen["primary_invalid_reason"]) if chosen else None,
                "selected_position": decode_position_id(chosen["position_id"]) if chosen else None,
                "selected_candidate_row_id": chosen["candidate_row_id"] if chosen else None,
                "regret": gains[0] - chosen["target_root_gain"] if chosen else None,
                "chains_here": len(here),
                "fanout": len({other["selected_shell_index"] for other in here} - {-1}) if chosen else None,
            }
        )
    return lines


def parameters(rollout: Row) -> Row:
    beam = rollout["beam_width"]
    return {name: rollout[name] for name in ("horizon", "branch_factor", "temperature")} | {
        "beam_width": None if beam == -1 else beam
    }


def _given(value: float) -> float | None:
    return None if math.isnan(value) else value


TREE_KEY = ("recipe", "policy", "step_index", "position", "strategy", "mixture")


def tree(store: PlainStore) -> dict[tuple[Any, ...], Row]:
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in store.candidates:
        if row["selected_mask"]:
            rollout = store.rollouts[row["rollout_row_id"]]
            family = decode_position_id(row["position_id"]), decode_strategy_id(row["strategy_id"])
            component = f"component_{row['mixture_id']}"
            key = store.recipe(rollout), rollout["policy_id"], row["step_index"], *family, component
            found[key].append(row)
    at_step: dict[tuple[Any, ...], int] = defaultdict(int)
    for key, rows in found.items():
        at_step[key[:3]] += len(rows)
    decisions = {line["step_row_id"]: line for line in objectives(store)}

    def mean(rows: list[Row], name: str) -> float:
        return fmean(decisions[row["step_row_id"]][name] for row in rows)

    return {
        key: {
            **parameters(store.rollouts[rows[0]["rollout_row_id"]]),
            "selected": len(rows),
            "chains": len({row["rollout_row_id"] for row in rows}),
            "targets": len({store.rollouts[row["rollout_row_id"]]["target_row_id"] for row in rows}),
            "root_gain_mean": fmean(row["target_root_gain"] for row in rows),
            "valid_fanout_mean": fmean(store.steps[row["step_row_id"]]["num_valid_candidates"] for row in rows),
            "invalid_fraction_mean": mean(rows, "invalid_fraction"),
            "entropy_mean": mean(rows, "entropy"),
            "fanout_mean": mean(rows, "fanout"),
            "share": len(rows) / at_step[key[:3]],
            "distinct_views": len(
                {(store.rollouts[row["rollout_row_id"]]["target_row_id"], *row["pose_world_cam"][9:]) for row in rows}
            ),
        }
        for key, rows in found.items()
    }


def depths(reader: RolloutZarrStoreReader) -> list[Row]:
    """Every stored image, one pixel at a time."""
    stored = reader.table("selected_depth").to_dicts()
    images, masks = (reader.array(f"selected_depth/{name}").tolist() for name in ("depth_m", "valid_mask"))
    return [_depth(*row) for row in zip(stored, images, masks, strict=True) if row[0]["candidate_row_id"] != -1]


def _depth(row: Row, image: list[list[float]], valid_mask: list[list[bool]]) -> Row:
    pixels = [depth for line in image for depth in line]
    mask = [valid for line in valid_mask for valid in line]
    seen = [depth for depth, valid in zip(pixels, mask, strict=True) if valid]
    return {
        "step_row_id": row["step_row_id"],
        "selected_candidate_row_id": row["candidate_row_id"],
        "image_height": row["image_size_hw"][0],
        "image_width": row["image_size_hw"][1],
        "focal_x_px": row["focal_px"][0],
        "focal_y_px": row["focal_px"][1],
        "principal_x_px": row["principal_point_px"][0],
        "principal_y_px": row["principal_point_px"][1],
        "pixel_count": len(pixels),
        "valid_pixels": len(seen),
        "valid_fraction": len(seen) / len(pixels),
        "depth_min_m": min(seen, default=None),
        "depth_mean_m": fmean(seen) if seen else None,
        "depth_median_m": _quantile(sorted(seen), 0.5) if seen else None,
        "depth_max_m": max(seen, default=None),
    }


def suspicious(store: PlainStore) -> list[tuple[str, int | None, int | None]]:
    """(kind, step, candidate) of the findings that follow from steps and candidates, at default thresholds."""
    found: list[tuple[str, int | None, int | None]] = []
    for step in store.steps:
        shell, at = store.shell(step), step["step_row_id"]
        rollout = store.rollouts[step["rollout_row_id"]]
        valid = [row for row in shell if row["actor_action_mask"]]
        labels = [row["target_root_gain"] for row in shell if row["oracle_label_mask"]]
        if len(valid) < 3:
            found.append(("low_valid_fanout", at, None))
        refused = [row["primary_invalid_reason"] for row in shell if not row["actor_action_mask"]]
        most = max(map(refused.count, refused), default=0)
        if refused and most >= 0.8 * len(refused):
            found.append(("dominant_invalid_reason", at, None))
        if refused and most >= 0.8 * len(shell):
            found.append(("dominant_reason_of_shell", at, None))
        if len(labels) > 1 and max(labels) == min(labels):
            found.append(("equal_labels_in_step", at, None))
        for row in valid if store.targets[rollout["target_row_id"]]["gt_label_valid_mask"] else ():
            if not row["oracle_label_mask"]:
                found.append(("valid_candidate_missing_label", at, row["candidate_row_id"]))
        for row in shell:
            if any(abs(row[name]) > 1 for name in ("target_root_gain", "target_rri", "scene_root_gain", "scene_rri")):
                found.append(("gain_out_of_range", at, row["candidate_row_id"]))
            if not row["selected_mask"]:
                continue
            moved = store.diagnostics[row["candidate_row_id"]]
            if (
                moved["motion_step_length_m"] > 1.25
                or abs(moved["motion_height_delta_m"]) > 0.6
                or moved["motion_backward_step_m"] > 0.35
                or moved["motion_yaw_delta_deg"] > 85
            ):
                found.append(("selected_motion_outlier", at, row["candidate_row_id"]))
            better = sum(gain > row["target_root_gain"] for gain in labels)
            if rollout["policy_id"] == "oracle_greedy" and better >= rollout["branch_factor"]:
                found.append(("greedy_choice_not_best", at, row["candidate_row_id"]))
    return sorted(found, key=str)
