"""What one machine finds when it is asked whether it could build shards of a campaign."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rollout_assets import __version__
from rollout_assets.campaigns.plan import open_source
from rollout_assets.cluster.settings import database_url
from rollout_assets.config import CampaignConfig, load_campaign
from rollout_assets.errors import ConfigError, RolloutAssetsError
from rollout_assets.geometry.devices import resolve_device
from rollout_assets.locations.conditions import require_conditional_writes
from rollout_assets.locations.objects import ObjectFolder
from rollout_assets.locations.url import ObjectUrl

MOST_SKEW_S = 2.0
"""How far a node's clock may be from the database's; runs, leases and logs are ordered by time."""

COMMAND = "dagster"
"""The bare command that a launcher starts a run with."""

PASSED_ON = "_cluster_check"
"""Folder, or prefix of objects, in the output for what the check writes; it is removed afterwards."""


@dataclass(frozen=True)
class Question:
    """What every node is asked about. ``token`` names what the asking machine has written into the output."""

    campaign: str
    token: str
    num_gpus: float = 0.0
    database: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Answer:
    """What a node found about one thing, and what is wrong with it, if anything is."""

    value: str
    problem: str = ""


@dataclass(frozen=True)
class NodeReport:
    """The answers of one node by their names."""

    node: str
    answers: Mapping[str, Answer]

    def problems(self) -> Iterator[tuple[str, str]]:
        """Name and text of everything that is wrong."""
        return ((name, answer.problem) for name, answer in self.answers.items() if answer.problem)


def examine_node(question: Question, name: str = "") -> NodeReport:
    """Answer every question on this machine; what goes wrong with one is its answer and stops no other."""
    config: CampaignConfig | None = None

    def campaign() -> Answer:
        nonlocal config
        config = load_campaign(question.campaign)
        return Answer(config.writer_config_hash)

    def about(ask: Callable[[CampaignConfig], Answer]) -> Answer:
        return Answer("not known", "the campaign cannot be read there") if config is None else ask(config)

    asked: dict[str, Callable[[], Answer]] = {
        "version": _version,
        "campaign": campaign,
        "source": partial(about, _source),
        "output": partial(about, partial(_output, question.token)),
        "device": partial(about, partial(_device, question.num_gpus)),
        "dagster": _command,
    }
    answers = {thing: _answer(ask) for thing, ask in asked.items()}
    answers["database"], answers["clock"] = _database_and_clock(question.database)
    return NodeReport(name or socket.gethostname(), answers)


def _answer(ask: Callable[[], Answer]) -> Answer:
    try:
        return ask()
    except RolloutAssetsError as error:
        return Answer("", str(error))
    except OSError as error:
        return Answer("", f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    except Exception as error:  # another version of a library, a broken driver: it is what the check is for
        return Answer("", f"{type(error).__name__}: {error}")


def _version() -> Answer:
    try:
        engine = version("dagster")
    except PackageNotFoundError:
        return Answer(__version__, "Dagster is not installed; run: pip install 'rollout-assets[cluster]'")
    return Answer(f"{__version__}, Dagster {engine}, Python {platform.python_version()}")


def _source(config: CampaignConfig) -> Answer:
    source = open_source(config)
    return Answer(f"{source.source_manifest_hash} with {len(source.rows()):,} rows")


def _output(token: str, config: CampaignConfig) -> Answer:
    """See what the asking machine has written, so that it is the same place, and write there too."""
    place = output_place(config)
    if place.read(token) is None:
        return Answer(
            str(config.shards.output_dir),
            f"{config.shards.output_dir}: does not hold what the asking machine has just written there; it must be one "
            "shared folder, or a URL",
        )
    own = f"{token}-{uuid.uuid4().hex}"
    place.write(own, b"a node was here")
    seen = place.read(own)
    place.remove(own)
    if seen is None:
        return Answer("", f"{config.shards.output_dir}: what was written there is not there")
    return Answer("writable")


def _device(num_gpus: float, config: CampaignConfig) -> Answer:
    device = resolve_device(config.oracle.device)
    if num_gpus and device == "cpu":
        problem = f"every run is given a GPU, and the campaign's device {config.oracle.device!r} is the processor here"
        return Answer(device, problem)
    return Answer(device)


def _command() -> Answer:
    path = shutil.which(COMMAND)
    if path is None:
        searched = os.environ.get("PATH", "")
        return Answer("", f"the command {COMMAND!r}, by which every run is started, is not on the PATH ({searched})")
    return Answer(path)


def _database_and_clock(database: Mapping[str, Any] | None) -> tuple[Answer, Answer]:
    if database is None:
        return Answer("SQLite"), Answer("no other")
    try:
        url = database_url(database)
    except ConfigError as error:
        return Answer("", str(error)), Answer("not known")
    if url.partition("://")[0] in ("postgresql", "postgres"):
        return Answer("", "the URL must begin with postgresql+psycopg2://; see infra/docs/ray.md"), Answer("not known")
    try:
        address, skew_s, trip_s = _ask_database(url)
    except Exception as error:  # SQLAlchemy's and the driver's own; their text may hold the URL, but no password
        return Answer("", f"not reachable: {_first_line(error, url)}"), Answer("not known")
    return Answer(address), judge_clock(skew_s, trip_s)


def judge_clock(skew_s: float, trip_s: float) -> Answer:
    """Whether a clock is close enough to the database's; ``trip_s`` seconds of the difference may be the way."""
    value = f"{skew_s:+.1f} s"
    if abs(skew_s) - trip_s > MOST_SKEW_S:
        return Answer(value, f"the clock is {value} from the database's, more than {MOST_SKEW_S:g} s; set it by NTP")
    return Answer(value)


def _ask_database(url: str) -> tuple[str, float, float]:
    """Address of the database, how far this machine's clock is ahead of it, and how long asking took."""
    from sqlalchemy import create_engine, text  # a node that only builds shards by itself needs no database

    engine = create_engine(url, connect_args={"connect_timeout": 10})
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
            began = time.time()
            then = float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
            ended = time.time()
            connection.execute(text("SELECT count(*) FROM information_schema.tables"))
        return f"{engine.url.host}/{engine.url.database}", (began + ended) / 2 - then, ended - began
    finally:
        engine.dispose()


def _first_line(error: Exception, url: str) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].replace(url, "the database")


class OutputPlace:
    """Small files in a campaign's output folder, or small objects below its URL."""

    def __init__(self, output: Path | ObjectUrl) -> None:
        self._url = output if isinstance(output, ObjectUrl) else None
        self._folder = None if isinstance(output, ObjectUrl) else output / PASSED_ON

    @property
    def _objects(self) -> ObjectFolder:
        assert self._url is not None
        return ObjectFolder(self._url)

    def read(self, name: str) -> bytes | None:
        """What was written under a name; None if there is nothing."""
        with suppress(FileNotFoundError):
            return (
                self._objects.read(f"{PASSED_ON}/{name}")
                if self._folder is None
                else (self._folder / name).read_bytes()
            )
        return None

    def write(self, name: str, content: bytes) -> None:
        """Write under a name; a storage that ignores conditions is refused."""
        if self._folder is None:
            require_conditional_writes(self._objects)
            self._objects.put(f"{PASSED_ON}/{name}", content)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / name).write_bytes(content)

    def remove(self, name: str) -> None:
        """Remove what was written under a name, and nothing else."""
        if self._folder is None:
            self._objects.remove([f"{PASSED_ON}/{name}"])
            return
        (self._folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # another check is still at work, or a campaign's files are beside it
            self._folder.rmdir()


def output_place(config: CampaignConfig) -> OutputPlace:
    """Where a campaign's output goes, for what the check writes."""
    return OutputPlace(config.shards.output_dir)


@contextmanager
def token_in_output(campaign: str) -> Iterator[str]:
    """Write something into a campaign's output that other machines must find there; its name."""
    token = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"
    place = output_place(load_campaign(campaign))
    place.write(token, token.encode())
    try:
        yield token
    finally:
        place.remove(token)
