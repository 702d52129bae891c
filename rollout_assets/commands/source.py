"""`rollout-assets source`: build, extend, look at and check VIN source stores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError

from rollout_assets.commands.opened_store import refuse_missing_source
from rollout_assets.commands.settings import key_or_index
from rollout_assets.commands.source_import import import_command
from rollout_assets.commands.terminal import (
    AsJson,
    exit_unless,
    green,
    print_table,
    progress_bars,
    red,
    say,
    show,
)
from rollout_assets.config.problems import problems_text
from rollout_assets.errors import ConfigError, MeshError, SourceError, counted
from rollout_assets.files import naming
from rollout_assets.locations.url import parse_location
from rollout_assets.synthetic.config import SyntheticConfig

if TYPE_CHECKING:
    from rollout_assets.sources.audit import StoreAudit
    from rollout_assets.sources.summary import StoreSummary
    from rollout_assets.sources.vin_store import VinOfflineStore
    from rollout_assets.synthetic.furniture_repair import FurnitureFile
    from rollout_assets.synthetic.store import SyntheticSummary

app = typer.Typer(help="Build, extend, look at and check source stores.", no_args_is_help=True)

StoreDir = Annotated[Path, typer.Argument(help="The store's directory.", metavar="STORE")]
StorePlace = Annotated[str, typer.Argument(help="The store's directory, or a URL of object storage.", metavar="STORE")]
MeshDirs = Annotated[
    list[str] | None, typer.Option("--mesh-dir", help="Where scene meshes lie; default: meshes/ in the store.")
]
Furniture = Annotated[
    Path | None, typer.Option("--furniture", help="Place the mesh files of this folder instead of built-in furniture.")
]
Workers = Annotated[int | None, typer.Option("--workers", help="Processes; default: one per core.", min=1, max=256)]


@app.command()
def build(
    store: StoreDir,
    scenes: Annotated[int, typer.Option(help="Homes to build.")] = 8,
    snippets: Annotated[int, typer.Option(help="Walks through each home.")] = 4,
    faces: Annotated[int, typer.Option(help="Triangles wanted per home.")] = 100_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same store.")] = 0,
    evidence: Annotated[bool, typer.Option("--evidence", help="Also write evidence voxels.")] = False,
    furniture: Furniture = None,
    workers: Workers = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Build synthetic homes, walked through and seen by a camera, as a source store with its meshes."""
    try:
        config = SyntheticConfig(
            scenes=scenes,
            snippets_per_scene=snippets,
            faces=faces,
            seed=seed,
            evidence=evidence,
            furniture_dir=furniture,
            workers=workers,
        )
    except ValidationError as error:
        raise ConfigError(problems_text(error, SyntheticConfig)) from None
    _refuse_missing_furniture(config.furniture_dir)
    from rollout_assets.synthetic.store import build_synthetic_store

    with progress_bars() as progress:
        summary = build_synthetic_store(store, config, progress, overwrite=overwrite)
    show(summary, as_json, _show_summary)


app.command("import")(import_command)


@app.command()
def append(
    store: StoreDir,
    snippets: Annotated[int, typer.Option(help="New walks through each scene.")] = 1,
    new_scenes: Annotated[int, typer.Option(help="New homes, with the store's usual number of walks.")] = 0,
    scene: Annotated[list[str] | None, typer.Option(help="Only these scenes get new walks.")] = None,
    furniture: Furniture = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Add snippets to a synthetic store; readers see all of them or none."""
    if not store.is_dir():
        raise SourceError(f"{store.absolute()}: no such store")
    _refuse_missing_furniture(furniture)
    from rollout_assets.synthetic.store import append_synthetic_snippets

    with progress_bars() as progress:
        summary = append_synthetic_snippets(
            store, snippets, new_scenes, progress, scene_ids=scene or None, furniture_dir=furniture, workers=workers
        )
    show(summary, as_json, _show_summary)


@app.command()
def info(
    store: StorePlace,
    mesh_dir: MeshDirs = None,
    rows: Annotated[bool, typer.Option("--rows", help="List every row instead of a summary.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write a top view of one sample, as .html or .png.", metavar="FILE")
    ] = None,
    sample: Annotated[str, typer.Option(help="Index or key of the sample to plot.")] = "0",
    as_json: AsJson = False,
) -> None:
    """Show what a store holds: rows per split, scenes, faces, points and boxes."""
    refuse_missing_source(store)
    from rollout_assets.sources.layout import IndexRow
    from rollout_assets.sources.vin_store import VinOfflineStore

    opened = VinOfflineStore.open(store, [parse_location(place) for place in mesh_dir or ()])
    if rows:
        title, names = f"{store}: {len(opened)} rows", list(IndexRow.model_fields)
        show(opened.rows(), as_json, lambda rows: print_table(title, names, [list(vars(row).values()) for row in rows]))
    else:
        show_store(opened, as_json)
    if plot is not None:
        from rollout_assets.reports.source_picture import plot_sample  # loads plotly, which only a picture needs

        with naming(plot):
            plot_sample(opened, opened.row(key_or_index(sample)), plot)
        if not as_json:
            say(f"wrote {plot}")


@app.command()
def check(store: StorePlace, mesh_dir: MeshDirs = None, as_json: AsJson = False) -> None:
    """Look at every value of a store and tell apart what is broken, what is unusual and what is unknown.

    Broken: the store cannot be used as it is, exit code 2. Unusual: it works, but rows or labels may be missing, or its
    layout is not the common one. Unknown: parts that no known format version has; they are ignored.
    """
    refuse_missing_source(store)
    from rollout_assets.sources.audit import audit_store

    with progress_bars() as progress:
        audit = audit_store(store, [parse_location(place) for place in mesh_dir or ()], progress)
    show(audit, as_json, lambda audit: _show_audit(store, audit))
    exit_unless(audit.ok)


def _refuse_missing_furniture(folder: Path | None) -> None:
    if folder is not None and not folder.is_dir():
        raise MeshError(f"{folder}: no such furniture directory")


def show_store(opened: VinOfflineStore, as_json: bool = False) -> None:
    """Print the scene table of an opened store."""
    from rollout_assets.sources.summary import summarise_store

    with progress_bars() as progress:
        summary = summarise_store(opened, progress)
    show(summary, as_json, _show_scenes)


def _show_audit(store: str, audit: StoreAudit) -> None:
    kinds = {"broken": audit.broken, "unusual": audit.unusual, "unknown": audit.unknown}
    findings = [(kind, finding) for kind, of_kind in kinds.items() for finding in of_kind]
    if findings:
        print_table(f"{store}: {counted(len(findings), 'finding')}", ("kind", "finding"), findings)
    verdict = green("ok") if audit.ok else red("broken")
    counts = ", ".join(f"{len(of_kind)} {kind}" for kind, of_kind in kinds.items())
    version = "" if audit.format_version is None else f"format version {audit.format_version}, "
    say(verdict, f": {store}, {version}{counted(audit.num_rows, 'row')}; findings: {counts}")


def _show_scenes(summary: StoreSummary) -> None:
    print_table(
        f"{summary.path}  (format version {summary.format_version}, manifest {summary.source_manifest_hash})",
        ("scene", "split", "rows", "faces", "points", "gt boxes", "detected", "poses"),
        [tuple(vars(scene).values()) for scene in summary.scenes],
    )
    splits = ", ".join(f"{count} {split}" for split, count in summary.rows_per_split.items())
    total = sum(summary.rows_per_split.values())
    scenes = len({scene.scene_id for scene in summary.scenes})
    place = f"{counted(scenes, 'scene')} in {counted(summary.num_shards, 'source shard')}"
    say(f"{total} rows ({splits}) of {place}; points, boxes and poses are means per row")


def _show_furniture(files: tuple[FurnitureFile, ...]) -> None:
    rows = []
    for file in files:
        size = "–" if file.size_m is None else " x ".join(f"{side:.2f}" for side in file.size_m)
        what = f"refused: {file.refused}" if file.refused else "; ".join(file.done) or "used as it is"
        rows.append((file.file, file.class_name, file.faces_in_file, file.faces_used, size, what))
    print_table("furniture", ("file", "class", "faces", "used", "size (m)", "what was done"), rows)


def _show_summary(summary: SyntheticSummary) -> None:
    if summary.furniture:
        _show_furniture(summary.furniture)
    say(
        green(summary.store_dir),
        f": {summary.new_samples} new rows in {summary.new_shards} source shards "
        f"({summary.new_scenes} new scenes); now {summary.num_samples} rows, {summary.num_train} train and "
        f"{summary.num_val} val; {summary.seconds:.1f} s",
    )
