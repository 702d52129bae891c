"""`rollout-assets aggregate`: metrics over many result files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rollout_assets.commands.terminal import AsJson, green, print_json, print_table, progress_bars, say

COUNTS = ("tasks", "expected", "done", "refused", "no_view", "failed", "missing")
"""What is counted for every agent."""


def aggregate(
    inputs: Annotated[
        str, typer.Argument(help="Result files: patterns separated by commas, ** included; quote them.", metavar="GLOB")
    ],
    output: Annotated[
        Path, typer.Option("--out", "-o", help="All lines in one file; metrics lie beside it.", metavar="OUT.jsonl")
    ],
    no_merge: Annotated[
        bool, typer.Option("--no-merge", help="Only metrics, no merged file; OUT may then be the input itself.")
    ] = False,
    success_threshold: Annotated[float, typer.Option(help="Reward from which a rollout is a success.")] = 0.1,
    as_json: AsJson = False,
) -> None:
    """Metrics per agent and task over all result files, into OUT_aggregate_metrics.json; needs no server.

    Files that a collection writes beside its results are left out, and nothing that was collected is overwritten. A
    line that is malformed, or a rollout that comes twice, is an error with file and line.
    """
    from rollout_assets.collection.aggregation import aggregate_rollouts
    from rollout_assets.collection.configs import RolloutAggregationConfig

    config = RolloutAggregationConfig(
        input_glob=inputs,
        output_jsonl_fpath=output,
        merge_shards=not no_merge,
        metrics={"success_threshold": success_threshold},
    )
    with progress_bars() as progress:
        report = aggregate_rollouts(config, progress)
    if as_json:
        print_json(report)
        return
    show_metrics(report.metrics)
    merged = f", merged into {report.merged}" if report.merged is not None else ""
    say(
        green(report.metrics_path),
        f": {report.lines:,} results of {len(report.files):,} files{merged}, in {report.seconds:.1f} s",
    )


def show_metrics(entries: list[dict[str, Any]]) -> None:
    """Aggregated metrics, one agent a line."""
    rows = []
    for entry in entries:
        counts, metrics, keys = entry["counts"], entry["agent_metrics"], entry["key_metrics"]
        best = [name for name in keys if name.startswith("best@")]
        success = [name for name in keys if name.startswith("success@")]
        rows.append(
            (
                entry["agent_ref"]["name"],
                *(counts[name] for name in COUNTS),
                _figure(metrics.get("reward/mean"), keys.get("reward/mean", {}).get("interval")),
                _figure(metrics.get("reward/median")),
                _figure(metrics.get("reward/std")),
                ", ".join(f"{name} {_figure(keys[name]['value'])}" for name in (*best[-1:], *success[-1:])),
            )
        )
    print_table("results", ("agent", *COUNTS, "reward", "median", "std", "of k"), rows)


def _figure(value: float | None, interval: list[float] | None = None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" + (f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else "")
