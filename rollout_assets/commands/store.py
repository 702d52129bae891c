"""`rollout-assets store`: look into, check and export rollout stores."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rollout_assets.commands.frames import plain
from rollout_assets.commands.opened_store import Split, Store, open_store, store_place
from rollout_assets.commands.terminal import (
    AsJson,
    columns_that_fit,
    exit_unless,
    print_json,
    print_table,
    progress_bars,
    red,
    say,
    show,
    yellow,
)
from rollout_assets.errors import StoreError, counted

if TYPE_CHECKING:
    from rollout_assets.rollouts.zarr_store import RolloutZarrValidationResult
    from rollout_assets.rollouts.zarr_store.foreign.convert import Conversion
    from rollout_assets.rollouts.zarr_store.summary import StoreInfo

app = typer.Typer(help="Look into, check and export rollout stores.", no_args_is_help=True)

SHOWN_FINDINGS = 7
"""Findings about a store of another writer that are printed; with title, rest and layout that is ten lines."""

SHOWN_KINDS = 4
"""Checks of which the line about further findings gives the count."""

Profile = Literal["own", "foreign"]
"""Layouts by their names, as the store's room has them too; its module takes zarr along."""

TableName = Annotated[str, typer.Argument(help="Name of a table.", metavar="TABLE")]
Columns = Annotated[list[str] | None, typer.Option("--column", help="Only this column; may be repeated.")]


@app.command()
def info(store: Store, split: Split = None, as_json: AsJson = False) -> None:
    """What a store holds and where it came from."""
    reader = open_store(store, split)
    from rollout_assets.rollouts.zarr_store.summary import store_info

    show(store_info(reader), as_json, _show_info)


def _show_info(facts: StoreInfo) -> None:
    single_values = [(name, value) for name, value in vars(facts).items() if not isinstance(value, dict)]
    print_table(str(facts.location), ("what", "value"), single_values)
    print_table("rows", ("table", "rows"), list(facts.counts.items()))
    hashes = [(name, ", ".join(values)) for name, values in facts.config_hashes.items() if values]
    print_table("configs", ("config", "hashes"), hashes)


@app.command()
def validate(
    store: Store,
    split: Split = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also decode depth and hash the content of every array.")
    ] = False,
    profile: Annotated[
        Profile | None,
        typer.Option(help="The layout that the store must have: this package's own, or any; default: by its writer."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="List every finding about a store of another writer, not only ten lines.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a store against the schema, the rules and itself; exit code 2 if anything is wrong.

    A store of another writer may have any layout that holds the schema: how it differs from ours is summed up in a line
    for each kind, and only what its rows, attributes and manifest say wrong is a finding. What is wrong with such a
    store is said in ten lines at most, with findings of every kind among them; ``--all`` and ``--json`` have all.
    """
    place = store_place(store, split)
    from rollout_assets.rollouts.zarr_store import validate_rollout_zarr_store

    result = validate_rollout_zarr_store(place, deep=deep, profile=profile)
    if as_json:
        print_json({"ok": result.ok, "counts": result.counts(), **vars(result)})
    else:
        _show_validation(str(place), result, everything)
    exit_unless(result.ok)


def _show_validation(place: str, result: RolloutZarrValidationResult, everything: bool) -> None:
    if result.ok:
        depth = "deep" if result.deep else "without --deep"
        say(f"{place}: nothing wrong in {result.num_candidates:,} candidate rows ({depth})")
    elif result.profile == "own":
        rows = [(f.check, f.where, f.row, f.count, f.problem, f.value) for f in result.findings]
        print_table(f"{place}: {len(rows)} findings", ("check", "where", "row", "rows", "problem", "got"), rows)
    else:
        _show_foreign_findings(place, result, everything)
    if result.ok or everything:
        for note in result.layout:
            say(yellow("foreign layout"), f": {note}")


def _show_foreign_findings(place: str, result: RolloutZarrValidationResult, everything: bool) -> None:
    from rollout_assets.rollouts.zarr_store.findings import one_of_each_first

    say(f"{place}: {counted(len(result.findings), 'finding')}")
    fit = len(result.findings) <= SHOWN_FINDINGS
    shown = result.findings if everything or fit else one_of_each_first(result.findings)[:SHOWN_FINDINGS]
    for finding in shown:
        say(red(finding.check), f": {finding}")
    if everything:
        return
    more = Counter(finding.check for finding in result.findings) - Counter(finding.check for finding in shown)
    if more:
        kinds = ", ".join(f"{count} of {check}" for check, count in more.most_common(SHOWN_KINDS))
        others = f" and {counted(len(more) - SHOWN_KINDS, 'other check')}" if len(more) > SHOWN_KINDS else ""
        say(f"and {more.total():,} more: {kinds}{others}; --all shows them")
    if result.layout:
        say(yellow("foreign layout"), f": differs from ours in {counted(len(result.layout), 'way')}; --all lists them")


@app.command()
def convert(
    store: Store,
    destination: Annotated[Path, typer.Argument(help="The new store; must not exist.", metavar="DESTINATION")],
    split: Split = None,
    as_json: AsJson = False,
) -> None:
    """Rewrite a store of another writer as one of this package, with checksums and digests; nothing is changed in it.

    The training view is rebuilt from the tables and compared with theirs. What cannot be carried over is named.
    """
    place = store_place(store, split)
    from rollout_assets.rollouts.zarr_store.foreign.convert import convert_store

    with progress_bars() as progress:
        result = convert_store(place, destination, progress=progress)
    show(result, as_json, _show_conversion)


def _show_conversion(result: Conversion) -> None:
    written = result.written
    rows = f"{written.num_candidates:,} candidate rows of {counted(written.num_rollouts, 'rollout')}"
    say(f"{written.store_dir}: {rows}, validated")
    for title, names in (
        ("derived", result.derived),
        ("not in their store, so not in the new one", result.absent),
        ("carried over, though beyond the schema", result.extra_arrays),
        ("kept in the manifest under converted_from", result.kept_in_manifest),
    ):
        if names:
            say(f"{title}: {', '.join(names)}")
    if not result.view_differences:
        say("their training view is the one that their tables make")
    for line in result.view_differences:
        say(yellow("rebuilt"), f": {line}")
    for name in result.left_behind:
        say(yellow("not carried over"), f": {name}")


@app.command()
def schema(
    table: Annotated[str | None, typer.Argument(help="Only this table.", metavar="TABLE")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page infra/docs/store_format.md.")] = False,
    as_json: AsJson = False,
) -> None:
    """Every array of the schema that this package writes and reads."""
    if markdown:
        from rollout_assets.reports.schema_page import schema_markdown

        typer.echo(schema_markdown(), nl=False)
        return
    from rollout_assets.rollouts.zarr_store.schema import GROUPS, ROLLOUT_ZARR_SCHEMA_VERSION

    if table is not None and table not in GROUPS:
        raise StoreError(f"no table {table!r}; the schema has {', '.join(GROUPS)}")
    from rollout_assets.rollouts.zarr_store.summary import schema_rows

    rows = schema_rows(table)
    if as_json:
        print_json(rows)
        return
    shown = [(row.array, row.dtype, row.row_shape, row.dictionary) for row in rows]
    print_table(f"schema {ROLLOUT_ZARR_SCHEMA_VERSION}", ("array", "dtype", "row shape", "strings in"), shown)


@app.command()
def head(
    store: Store,
    table: TableName,
    split: Split = None,
    rows: Annotated[int, typer.Option("--rows", "-n", help="How many.", min=1)] = 10,
    column: Columns = None,
    as_json: AsJson = False,
) -> None:
    """The first rows of a table, strings decoded."""
    reader = open_store(store, split)
    from rollout_assets.rollouts.zarr_store.summary import head as first_rows

    frame = first_rows(reader, table, rows, column)
    if as_json:
        print_json([{name: plain(value) for name, value in row.items()} for row in frame.rows(named=True)])
        return
    rows_shown = [tuple(map(_short, row)) for row in frame.rows()]
    count = columns_that_fit(frame.columns, rows_shown)
    left_out = f"; {len(frame.columns) - count} more columns: --column or --json" if count < len(frame.columns) else ""
    title = f"{table}, first {counted(len(frame), 'row')}{left_out}"
    print_table(title, frame.columns[:count], [row[:count] for row in rows_shown])


@app.command()
def export(
    store: Store,
    table: TableName,
    destination: Annotated[Path, typer.Argument(help="A file ending in .parquet or .csv.", metavar="FILE")],
    split: Split = None,
    column: Columns = None,
    ids: Annotated[bool, typer.Option("--ids", help="Keep dictionary ids instead of their strings.")] = False,
) -> None:
    """Write a table to a Parquet or CSV file."""
    reader = open_store(store, split)
    from rollout_assets.rollouts.zarr_store.summary import export_table

    count = export_table(reader, table, destination, columns=column, decode=not ids)
    say(f"{destination}: {count:,} rows of {table}")


def _short(value: object) -> object:
    if isinstance(value, list):
        return f"[{', '.join(f'{part:.3g}' if isinstance(part, float) else str(part) for part in value[:12])}]"
    return f"{value:.6g}" if isinstance(value, float) else value
