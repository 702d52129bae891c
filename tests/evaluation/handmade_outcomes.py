"""Outcomes of three references and one policy whose every figure can be told beforehand."""

from __future__ import annotations

import polars as pl

from rollout_assets.evaluation.config import BootstrapConfig
from rollout_assets.evaluation.tables import PairedOutcomes

POLICIES = ("random_valid", "oracle_greedy", "oracle_lookahead", "mine")
ROLES = ("reference", "reference", "reference", "policy")
SCENES, ROOTS, SEEDS = 6, 2, 2


def handmade_outcomes() -> pl.DataFrame:
    """Random gains 0.1 and 0.3 in its two draws, greedy 0.6, lookahead 0.7, mine 0.4; scenes add 0 to 0.05 to all.

    Every second view adds nothing: ``gain_1`` is half of the final gain but for greedy, which has all of it at once.
    In the first root of the first scene mine takes no view at all, and in the second it loses ground.
    """
    rows = []
    for seed in range(SEEDS):
        for scene in range(SCENES):
            for root in range(ROOTS):
                for policy, draw, gain in (
                    ("random_valid", 0, 0.1),
                    ("random_valid", 1, 0.3),
                    ("oracle_greedy", 0, 0.6),
                    ("oracle_lookahead", 0, 0.7),
                    ("mine", 0, 0.4),
                ):
                    rows.append(_row(seed, scene, root, policy, draw, gain + 0.01 * scene))
    return pl.DataFrame(rows)


def _row(seed: int, scene: int, root: int, policy: str, draw: int, gain: float) -> dict[str, object]:
    views = 2
    if policy == "mine" and scene == 0 and seed == 0:
        gain, views = (0.0, 0) if root == 0 else (-0.1, 1)
    first = gain if policy == "oracle_greedy" or views == 1 else gain / 2
    return {
        "policy": policy,
        "draw": draw,
        "seed": seed,
        "sample_key": f"snippet-{scene}",
        "target_id": f"target-{scene}-{root}",
        "scene": f"scene-{scene}",
        "target_class": "chair" if root else "table",
        "root_error_m2": None if policy == "mine" else 0.01 * (scene + 1),
        "valid_views": 10 * root + scene,
        "root_headroom": 0.1,
        "gain": gain,
        "gain_1": first,
        "gain_2": gain,
        "views": views,
        "ended_early": views < 2,
        "rollout_row_id": 1000 * seed + 100 * scene + 10 * root + POLICIES.index(policy) + draw,
    }


def paired(outcomes: pl.DataFrame | None = None) -> PairedOutcomes:
    outcomes = handmade_outcomes() if outcomes is None else outcomes
    return PairedOutcomes(outcomes, POLICIES, 2, BootstrapConfig(samples=400))
