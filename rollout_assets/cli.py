"""`rollout-assets <verb>`: the command line. A verb's module is imported only when that verb is used.

Errors meant for the user, wrong options among them, are one line on stderr and exit code 2; ``--debug`` adds the
traceback. Ctrl-C is one line and exit code 130.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from rollout_assets import __version__
from rollout_assets.errors import ConfigError, RolloutAssetsError, error_line
from rollout_assets.interruption import INTERRUPTED, stop_at_once, when_interrupted

USER_ERROR = 2
"""Exit code when the input or the state of the data is at fault."""

INTERNAL_ERROR = 1
"""Exit code when the program itself is at fault."""

PROGRAM = "rollout-assets"

VERBS = {
    "source": "Build, extend, look at and check source stores.",
    "config": "Show, hash, validate and begin campaign files.",
    "campaign": "Plan, run, watch and promote the rollout shards of a campaign.",
    "cluster": "See whether a cluster is ready for a campaign.",
    "store": "Look into, check and export rollout stores.",
    "inspect": "See what is in a rollout store, what was lost on the way, and what looks wrong.",
    "bench": "Measure speed and exactness on this machine.",
    "report": "Write one self-contained page about a store; with --rollout, that rollout in 3-D.",
    "rollout": "Run one root: pick a target, offer views, score them, take one, go on; and show every step.",
    "serve": "Run a campaign's rollouts for others over HTTP: /health, /run, /run_rollouts, /aggregate_metrics.",
    "collect": "Run many rollouts and keep each as a JSON line: in this process, from servers, or from servers "
    "started for it.",
    "aggregate": "Metrics per agent and task over all result files, into OUT_aggregate_metrics.json; needs no server.",
    "train": "Train a policy on promoted stores: a checkpoint, metrics for each epoch, and curves as a page.",
    "policy": "Look at and check checkpoints of policies.",
    "evaluate": "Roll policies out on held-out scenes, let the oracle score what they chose, and compare them.",
    "demo": "Go all the way through Dagster: synthetic homes, shards with their checks, one promoted store per split.",
    "ui": "Start the Dagster UI and its daemon on this machine only, and open http://127.0.0.1:3000 yourself.",
    "ci": "Plan, build, check and promote a campaign through Dagster; exit code 2 if an error-level check fails.",
}
"""Verb -> its line in ``--help``, which is the first paragraph of the verb's own."""

MODULES = {"ui": "dagster", "ci": "dagster", "train": "policy"}
"""Verb -> its module in ``commands/``, where that is not called like the verb."""

EXTRAS = {
    "serve": ("httpx", "starlette", "trimesh", "uvicorn", "warp"),
    "platform": ("dagster", "dagster_graphql", "dagster_webserver", "httpx", "trimesh", "warp"),
    "dev": ("sklearn",),
    "reports": ("matplotlib", "plotly", "trimesh", "warp"),
    "gym": ("gymnasium",),
    "cluster": ("dagster_postgres", "dagster_ray", "psycopg2", "ray", "sqlalchemy", "yaml"),
}
"""Extra -> optional packages that it installs."""

VERB_EXTRAS = {"serve": "serve", "collect": "serve", "report": "reports", "cluster": "cluster"}
"""Verb -> the extra that it is for; the others name ``platform`` for a package that several install."""

LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"


class LazyGroup(TyperGroup):
    """A group that lists its verbs without their modules, and imports a verb's module once that verb is named."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Put the real command in place of its line before Typer looks it up, also when a shell completes words."""
        if args and args[0] in VERBS:
            _Invocation.verb = args[0]
            with when_interrupted(stop_at_once):
                self.add_command(load_verb(args[0]), args[0])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C is said here for every command that has nothing of its own to say about it."""
        try:
            with when_interrupted(signal.default_int_handler):
                return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None


def load_verb(verb: str) -> Any:
    """The command of a verb, from its module: the function of that name, or the ``app`` of the module so called."""
    module = import_module(f"rollout_assets.commands.{MODULES.get(verb, verb)}")
    holder = typer.Typer(rich_markup_mode="markdown")
    if verb not in MODULES and hasattr(module, "app"):
        holder.add_typer(module.app, name=verb)
    else:
        holder.command(verb)(getattr(module, verb))
    return typer.main.get_group(holder).commands[verb]


app = typer.Typer(
    name=PROGRAM,
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
for _verb, _help in VERBS.items():
    app.command(_verb, help=_help)(lambda: None)


class _Invocation:
    """What the command line asked for, as far as a failure's message depends on it."""

    debug = False
    verb = ""


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"rollout-assets {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose", "-v", count=True, show_default=False, help="Log what happens on stderr; -vv logs details too."
        ),
    ] = 0,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Replay data for next-best-view learning, from recorded snippets to a promoted rollouts.zarr."""
    _Invocation.debug = debug
    if verbose:
        log_to_stderr(logging.DEBUG if verbose > 1 else logging.INFO)


def log_to_stderr(level: int) -> None:
    """Show this package's log on stderr from ``level`` on; without this call the package logs nothing."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    logger = logging.getLogger("rollout_assets")
    logger.addHandler(handler)
    logger.setLevel(level)


def main() -> None:
    """Entry point of the console script."""
    _print_any_text()
    try:
        _refuse_odd_arguments(sys.argv[1:])
        code = app(standalone_mode=False, prog_name=PROGRAM)
    except Exception as error:
        _fail(*_message_and_code(error))
    sys.exit(code or 0)


def _print_any_text() -> None:
    """Let text that the terminal's encoding lacks be printed as escapes, not end the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _refuse_odd_arguments(arguments: list[str]) -> None:
    """Refuse what cannot be written into a manifest or be the name of a file, before it meets either."""
    for argument in arguments:
        if "\0" in argument or argument.encode(errors="ignore").decode() != argument:
            raise ConfigError(f"an argument must be text in UTF-8 without NUL, got {argument!r}")


def _message_and_code(error: Exception) -> tuple[str, int]:
    """What an error says to the user, and the exit code that goes with it."""
    if isinstance(error, typer.TyperException):
        return _usage(error), USER_ERROR
    if isinstance(error, RolloutAssetsError):
        return str(error), USER_ERROR
    if isinstance(error, OSError):
        named = isinstance(error.filename, str | bytes | os.PathLike)
        where = f": {os.fsdecode(error.filename)}" if named else ""
        return f"{error.strerror or error}{where}", USER_ERROR
    if isinstance(error, ModuleNotFoundError) and (message := _missing_extra(error)):
        return message, USER_ERROR
    return _internal(error), INTERNAL_ERROR


def _usage(error: typer.TyperException) -> str:
    """What is wrong with the words of the command line; empty if its help has been shown instead."""
    message = error.format_message().replace("Value error, ", "").strip().rstrip(".")
    context = getattr(error, "ctx", None)
    hint = f"; see '{context.command_path} --help'" if context is not None else ""
    return f"{message[:1].lower()}{message[1:]}{hint}" if message else ""


def _missing_extra(error: ModuleNotFoundError) -> str:
    """Which extra installs the package that is missing; empty if none does."""
    package = (error.name or "").split(".")[0]
    extras = [extra for extra, packages in EXTRAS.items() if package in packages]
    if not extras:
        return ""
    wanted = VERB_EXTRAS.get(_Invocation.verb, "platform")
    extra = wanted if wanted in extras else extras[0]
    return f"this command needs {package}, which is not installed; run: pip install 'rollout-assets[{extra}]'"


def _internal(error: Exception) -> str:
    return f"internal error, {type(error).__name__}: {error}; 'rollout-assets --debug …' shows where"


def _fail(message: str, code: int) -> NoReturn:
    if _Invocation.debug:
        raise
    if message:
        typer.secho("error: ", fg=typer.colors.RED, bold=True, err=True, nl=False)
        typer.echo(error_line(message), err=True)
    sys.exit(code)
