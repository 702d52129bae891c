"""`rollout-assets <verb>`: thin commands over the rooms. Errors meant for the user are one line and exit code 2."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rollout_assets.commands import bench, campaign, config, inspect, source, store
from rollout_assets.commands.aggregate import aggregate
from rollout_assets.commands.collect import collect
from rollout_assets.commands.dagster import ci, ui
from rollout_assets.commands.demo import demo
from rollout_assets.commands.report import report
from rollout_assets.commands.rollout import rollout
from rollout_assets.commands.serve import serve
from rollout_assets.commands.terminal import err
from rollout_assets.errors import RolloutAssetsError

USER_ERROR = 2
"""Exit code when the input or the state of the data is at fault."""

INTERNAL_ERROR = 1
"""Exit code when the program itself is at fault."""

app = typer.Typer(
    name="rollout-assets",
    help="Replay data for next-best-view learning, from recorded snippets to a promoted rollouts.zarr.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(source.app, name="source")
app.add_typer(config.app, name="config")
app.add_typer(campaign.app, name="campaign")
app.add_typer(store.app, name="store")
app.add_typer(inspect.app, name="inspect")
app.add_typer(bench.app, name="bench")
app.command()(report)
app.command()(rollout)
app.command()(serve)
app.command()(collect)
app.command()(aggregate)
app.command()(demo)
app.command()(ui)
app.command()(ci)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
) -> None:
    """Replay data for next-best-view learning, from recorded snippets to a promoted rollouts.zarr."""
    _Failures.traceback = debug


class _Failures:
    """Whether a failure is shown with its traceback; set by ``--debug``."""

    traceback = False


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except RolloutAssetsError as error:
        _fail(str(error), USER_ERROR)
    except OSError as error:
        _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", USER_ERROR)
    except Exception as error:
        _fail(
            f"internal error, {type(error).__name__}: {error}; 'rollout-assets --debug …' shows where", INTERNAL_ERROR
        )


def _fail(message: str, code: int) -> None:
    if _Failures.traceback:
        raise
    err.print(f"[bold red]error:[/] {message}", highlight=False, soft_wrap=True)
    sys.exit(code)
