"""The shards of a campaign on a terminal: their table, and the lines below it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rollout_assets.commands import terminal
from rollout_assets.commands.terminal import coloured, line, red, say, yellow
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import counted

if TYPE_CHECKING:
    from rollout_assets.campaigns.status import RolloutShardCampaignStatus, RolloutShardStatus, ShardState

NO_RECORD = "the campaign gave no record at all: every source row was skipped; change what the reasons name"

SHOWN_SHARDS = 200
"""Most shards that the table of ``status`` lists in full; laying out more takes long."""

SHOWN_OF_MORE = 50
"""Shards that the table lists of a campaign with more of them."""

_BY_URGENCY: tuple[ShardState, ...] = ("failed", "incomplete", "running", "missing", "succeeded")

_COLOURS = {"succeeded": "green", "running": "cyan", "failed": "red", "incomplete": "yellow", "missing": "dim"}


def watch_status(config: CampaignConfig, every_s: float = 1.0) -> None:
    """Show the shards again and again until all are finished, or until Ctrl-C."""
    from rollout_assets.campaigns.status import summarize_rollout_shard_campaign

    try:
        with Live(console=terminal.out, refresh_per_second=4) as live:
            while True:
                summary = summarize_rollout_shard_campaign(config)
                live.update(Group(_status_table(summary), _status_line(summary)))
                if summary.complete:
                    return
                time.sleep(every_s)
    except KeyboardInterrupt:
        return


def show_status(summary: RolloutShardCampaignStatus) -> None:
    """Print the table of shards and what to do next."""
    terminal.out.print(_status_table(summary))
    say(_status_line(summary))


def _shown_shards(summary: RolloutShardCampaignStatus) -> Sequence[RolloutShardStatus]:
    """Return all shards, or the first few: those that need action, then the others."""
    if len(summary.shards) <= SHOWN_SHARDS:
        return summary.shards
    by_state = (summary.of(state) for state in _BY_URGENCY)
    return tuple(islice(chain.from_iterable(by_state), SHOWN_OF_MORE))


def _status_table(summary: RolloutShardCampaignStatus) -> Table:
    rows = [
        (
            shard.shard_id,
            shard.split,
            shard.rows,
            coloured(_COLOURS[shard.state], shard.state),
            shard.records,
            None if shard.store_bytes is None else shard.store_bytes / 1e6,
            shard.seconds,
            shard.reason,
            shard.hint,
        )
        for shard in _shown_shards(summary)
    ]
    columns = ("shard", "split", "rows", "state", "records", "MB", "seconds", "reason", "to go on")
    return terminal.make_table(f"{summary.campaign}: {summary.output_dir}", columns, rows)


def _status_line(summary: RolloutShardCampaignStatus) -> Text:
    counts = ", ".join(f"{count} {state}" for state, count in summary.counts().items() if count)
    lines = [line(f"{len(summary.shards):,} shards: {counts}")]
    if len(summary.shards) > SHOWN_SHARDS:
        lines.append(line(f"shown are {SHOWN_OF_MORE}, those that need action first; --json lists all"))
    without = summary.shards.without_records()
    if summary.barren:
        lines.append(red(NO_RECORD))
    elif without:
        lines.append(without_records([shard.shard_id for shard in without[: SHOWN_SHARDS + 1]], len(without)))
    if summary.unplanned_rows:
        new = summary.unplanned_rows
        unplanned = yellow(f"{counted(len(new), 'source row')} {'is' if len(new) == 1 else 'are'} in no shard yet")
        lines.append(line(unplanned, f", from {new[0]} on: campaign plan"))
    if summary.cut_plan:
        lines.append(line(red("the plan was cut"), f": {summary.cut_plan}"))
    for version in summary.damaged_versions:
        lines += [line(red("damaged"), f": {problem}: {version.hint}") for problem in version.problems]
    lines += [line(red("readers"), f": {problem}") for problem in summary.reader_problems]
    if summary.pin is not None:
        lines.append(line(yellow("pinned"), f": {summary.pin.holds}: campaign unpin lifts it"))
    elif summary.behind and summary.complete and not summary.reader_problems:
        lines.append(line(yellow("not all is promoted"), f": {summary.behind}: campaign promote"))
    return Text("\n").join(lines)


def without_records(shard_ids: Sequence[str], count: int) -> Text:
    """How many shards have no record, and the first of them."""
    listed = ", ".join(shard_ids[:SHOWN_SHARDS]) + (" …" if shard_ids[SHOWN_SHARDS:] else "")
    return line(yellow(f"{counted(count, 'shard')} without a record"), f": {listed}")
