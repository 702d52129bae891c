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
            "mixture_id": row["mixture_id"],
            "step_index": row["step_index"],
            "score_source": row["score_source_id"],
            "policy": rollout["policy_id"],
            "recipe": store.recipe(rollout),
            "scene": rollout["scene_id"],
            "split": rollout["split_id"],
            "target_class": target["target_class_name_id"],
            "target_id": target["target_id"],
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
        here = [other for other in store.steps if state(other) == state(step)]
        lines.append(
            {
                "step_row_id": step["step_row_id"],
                "invalid_fraction": sum(not row["actor_action_mask"] for row in shell) / len(shell),
                "labelled": len(gains),
                "best_root_gain": gains[0] if gains else None,
                "second_root_gain": gains[1] if len(gains) > 1 else None,
                "mean_root_gain": fmean(gains) if gains else None,
                "entropy": -sum(x * math.log(x) for x in p) if p else None,
                "marginal_target_root_gain": chosen["target_root_gain"] if chosen else None,
                "selected_position": decode_position_id(chosen["position_id"]) if chosen else None,
                "selected_candidate_row_id": chosen["candidate_row_id"] if chosen else None,
                "regret": gains[0] - chosen["target_root_gain"] if chosen else None,
                "chains_here": len(here),
                "fanout": len({other["selected_shell_index"] for other in here} - {-1}) if chosen else None,
            }
        )
    return lines


def tree(store: PlainStore) -> dict[tuple[Any, ...], Row]:
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in store.candidates:
        if row["selected_mask"]:
            rollout = store.rollouts[row["rollout_row_id"]]
            family = decode_position_id(row["position_id"])
            found[store.recipe(rollout), rollout["policy_id"], row["step_index"], family].append(row)
    at_step: dict[tuple[Any, ...], int] = defaultdict(int)
    for key, rows in found.items():
        at_step[key[:3]] += len(rows)
    return {
        key: {
            "selected": len(rows),
            "chains": len({row["rollout_row_id"] for row in rows}),
            "targets": len({store.rollouts[row["rollout_row_id"]]["target_row_id"] for row in rows}),
            "root_gain_mean": fmean(row["target_root_gain"] for row in rows),
            "share": len(rows) / at_step[key[:3]],
            "distinct_views": len(
                {(store.rollouts[row["rollout_row_id"]]["target_row_id"], *row["pose_world_cam"][9:]) for row in rows}
            ),
        }
        for key, rows in found.items()
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
        for reason in {row["primary_invalid_reason"] for row in shell if not row["actor_action_mask"]}:
            if sum(row["primary_invalid_reason"] == reason for row in shell) >= 0.8 * len(shell):
                found.append(("dominant_invalid_reason", at, None))
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
