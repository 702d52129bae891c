"""How an explanation of a candidate and the replay of rollouts are printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rollout_assets.commands.frames import show_frame, show_records
from rollout_assets.commands.terminal import exit_unless, green, print_json, print_table, red, say

if TYPE_CHECKING:
    from rollout_assets import rollouts


def show_explanation(explanation: rollouts.Explanation) -> None:
    """Print the story of one candidate, and the tables that it rests on."""
    for line in explanation.story:
        say(line)
    rules = [(r.rule, r.measured, r.limit or "not recorded", r.passed, r.reason) for r in explanation.rules]
    print_table("rules", ("rule", "measured", "limit", "passed", "reason"), rows=rules)
    show_records("oracle", vars(explanation.errors))
    show_records("source", explanation.source)
    target = ("target_id", "target_class_name", "gt_match_status", "gt_match_iou", "matched_gt_target_id", "reason")
    show_records("target", {name: explanation.target[name] for name in target})
    show_records("hashes", explanation.hashes)
    confirmed = {
        True: "hashes agree with the row's lineage",
        False: "NOT what the row's lineage says",
        None: "not recorded",
    }
    sections: dict[str, Any] = {key: value for part in explanation.config.values() for key, value in part.items()}
    show_records(f"config ({confirmed[explanation.config_confirmed]})", sections)
    show_records("made by", explanation.made_by)


def show_replays(replays: Sequence[rollouts.Replay], as_json: bool) -> None:
    """Print what differs between stored and recomputed rollouts; exit code 2 if anything does."""
    differing = [replay for replay in replays if not replay.identical]
    if as_json:
        print_json([_replay_facts(replay) for replay in replays])
    else:
        for replay in differing:
            show_frame(f"{replay.subject}: stored is a, recomputed is b", replay.differences, None, False, False)
        compared = sum((Counter(replay.diff.rows_compared) for replay in replays), Counter())
        verdict = red(f"{len(differing)} of {len(replays)} differ") if differing else green("identical")
        say(verdict, f": {compared['rollouts']:,} rollouts, {compared['candidates']:,} candidates recomputed")
    exit_unless(not differing)


def _replay_facts(replay: rollouts.Replay) -> dict[str, Any]:
    rows_compared, differences = replay.diff.rows_compared, replay.differences.to_dicts()
    return {"subject": replay.subject, "rows_compared": rows_compared, "differences": differences}
