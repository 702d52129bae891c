"""`rollout-assets source import`: scenes of one's own as a source store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from pydantic import ValidationError

from rollout_assets.commands.terminal import (
    AsJson,
    exit_unless,
    green,
    print_table,
    progress_bars,
    red,
    say,
    show,
    yellow,
)
from rollout_assets.config.problems import problems_text
from rollout_assets.errors import ConfigError, SourceError, counted
from rollout_assets.importing.config import Camera, ImportConfig, Units, Up

if TYPE_CHECKING:
    from rollout_assets.importing.import_store import ImportSummary
    from rollout_assets.importing.scene_rows import SceneReport


def _choices(kind: object) -> str:
    return "|".join(get_args(kind))


def import_command(
    scenes: Annotated[Path, typer.Argument(help="The directory with a folder per scene.", metavar="SCENES")],
    store: Annotated[Path, typer.Argument(help="The directory of the store to make.", metavar="STORE")],
    up: Annotated[str, typer.Option(help="The axis that points up.", metavar=_choices(Up))] = "auto",
    units: Annotated[str, typer.Option(help="Units of the files.", metavar=_choices(Units))] = "auto",
    camera: Annotated[str, typer.Option(help="Axes of given poses.", metavar=_choices(Camera))] = "auto",
    snippets: Annotated[int, typer.Option(help="Snippets of each scene.")] = 4,
    poses: Annotated[int, typer.Option(help="Trajectory poses of a snippet.")] = 20,
    val_share: Annotated[float, typer.Option(help="Share of scenes in split val.")] = 0.25,
    seed: Annotated[int, typer.Option(help="The same seed and files give the same store.")] = 0,
    evidence: Annotated[bool, typer.Option("--evidence", help="Also write evidence voxels.")] = False,
    workers: Annotated[int | None, typer.Option(help="Processes; default: one per core.", min=1, max=256)] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Import scenes of your own as a source store: GLB, OBJ or PLY meshes with objects.

    A scene is a folder with one mesh (or a mesh file by itself). Objects are the named parts of GLB and OBJ files, the
    instances of a PLY column, or the boxes of objects.json. A trajectory (TUM, trajectory.csv, poses.json), points and
    detections are used if they are there and made up if not. A bad scene is left out and named; exit code 2 then.
    """
    try:
        config = ImportConfig.model_validate(
            {
                "up": up,
                "units": units,
                "camera": camera,
                "snippets_per_scene": snippets,
                "poses": poses,
                "val_share": val_share,
                "seed": seed,
                "evidence": evidence,
                "workers": workers,
            }
        )
    except ValidationError as error:
        raise ConfigError(problems_text(error, ImportConfig)) from None
    if not (folder := scenes.absolute()).is_dir():
        raise SourceError(f"{folder}: no such directory; give the directory that holds one folder per scene")
    from rollout_assets.importing.import_store import import_scenes

    with progress_bars() as progress:
        summary = import_scenes(scenes, store, config, progress, overwrite=overwrite)
    show(summary, as_json, _show_summary)
    exit_unless(not summary.left_out)


def _show_summary(summary: ImportSummary) -> None:
    columns = (
        "scene",
        "mesh",
        "faces",
        "objects",
        "found by",
        "up",
        "units",
        "size (m)",
        "walks",
        "points",
        "detected",
    )
    print_table("what was understood", columns, [_table_row(report) for report in summary.scenes])
    for report in summary.scenes:
        for note in report.notes:
            say(yellow("note"), f": {report.scene_id}: {note}")
    for scene in summary.left_out:
        say(red("left out"), f": {scene.scene_id}: {scene.reason}")
    say(
        green(summary.store_dir),
        f": {counted(summary.num_samples, 'row')} of {counted(len(summary.scenes), 'scene')}, "
        f"{summary.num_train} train and {summary.num_val} val; {len(summary.left_out)} left out; "
        f"{summary.seconds:.1f} s",
    )
    say("look at it with: ", f"rollout-assets source info {summary.store_dir} --plot scene.png")


def _table_row(report: SceneReport) -> tuple[object, ...]:
    size = " x ".join(f"{side:.2f}" for side in report.size_m)
    return (
        report.scene_id,
        report.mesh,
        report.faces,
        report.objects,
        report.objects_from,
        report.up,
        report.units,
        size,
        report.walks,
        report.points,
        report.detections,
    )
