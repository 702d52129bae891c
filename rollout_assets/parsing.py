"""What people and other programs wrote: paths, text files, JSON and TOML. Whatever is odd in it is one clear error.

Every room parses through here, because the standard library answers deep nesting, an unknown home or a pipe with
errors that nobody expects, or by waiting for ever.
"""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rollout_assets.errors import ConfigError, NotRegularFile

LONGEST_PATH = 4_096
"""Characters of the longest path that the system takes."""

DEEPEST = 64
"""Lists and tables inside each other in what people write. Some programs that pass it on take little more."""

_TOO_DEEP = "lists or tables are nested too deeply"


def parse_json(data: str | bytes) -> Any:
    """The value of a JSON document; whatever is wrong with it is a ``ValueError``."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def parse_toml(text: str) -> dict[str, Any]:
    """The keys of a TOML document; whatever is wrong with it is a ``ValueError``."""
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    refuse_deep(values)
    return values


def refuse_deep(value: Any) -> None:
    """Raise ``ValueError`` for a value with more than ``DEEPEST`` lists and tables inside each other."""
    level = [value]
    for _ in range(DEEPEST):
        level = [entry for outer in level if isinstance(outer, dict | list) for entry in _entries(outer)]
    if any(isinstance(entry, dict | list) for entry in level):
        raise ValueError(_TOO_DEEP)


def _entries(outer: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return outer.values() if isinstance(outer, dict) else outer


def read_toml_file(path: Path, example: str | None = None) -> dict[str, Any]:
    """The keys of a TOML file; one that cannot be used is a ``ConfigError``.

    ``example`` is a command that prints such a file, for whoever named one that does not exist.
    """
    try:
        return parse_toml(read_text_file(path))
    except FileNotFoundError:
        way_out = "" if example is None else f"; '{example}' prints one to start from"
        raise ConfigError(f"{path}: no such file{way_out}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def open_regular(path: str | Path) -> io.BufferedReader:
    """Open a file of others for reading. Links are followed, but only to a regular file.

    What is opened is looked at, not its name, so that nothing can take its place in between. A pipe, a socket or a
    device is ``NotRegularFile``; a folder is ``IsADirectoryError``.
    """
    return open(path, "rb", opener=_open_regular)


def read_regular(path: str | Path) -> bytes:
    """The bytes of a regular file."""
    with open(path, "rb", buffering=0, opener=_open_regular) as stream:
        return stream.readall()


def _open_regular(path: str, flags: int) -> int:
    try:
        handle = os.open(path, flags | os.O_NONBLOCK)  # a pipe without a writer would wait for one
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise NotRegularFile(f"{path}: is a socket or a device, not a regular file") from None
        raise
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # open refuses folders itself
        return handle
    os.close(handle)
    raise NotRegularFile(f"{path}: is {_kind(mode)}, not a regular file")


def read_text_file(path: Path) -> str:
    """The text of a file in UTF-8; a folder, a pipe or a device is refused, because reading it may never end."""
    refuse_special_file(path)
    try:
        return read_regular(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not text in UTF-8: {error.reason} at byte {error.start:,}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def refuse_special_file(path: Path) -> None:
    """Raise ``ConfigError`` for anything but a regular file, and ``FileNotFoundError`` for nothing at all."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{path}: is {_kind(mode)}; give a regular file")


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def refuse_long_pattern(pattern: str) -> None:
    """Raise ``ConfigError`` for a pattern longer than any path, because translating it takes time without bound."""
    if len(pattern) > LONGEST_PATH:
        raise ConfigError(f"a pattern of files must have at most {LONGEST_PATH:,} characters, got {len(pattern):,}")


def expand_path(path: str | Path) -> Path:
    """A path with ``~`` and ``~user`` replaced by the home they name; a path that no file can have is refused."""
    if "\0" in str(path):
        raise ConfigError(f"a path must not contain NUL, got {str(path)!r}")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"{path}: there is no home folder for {Path(path).parts[0]}; write the path out") from None
