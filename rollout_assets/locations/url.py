"""URLs of object storage, beside paths: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``.

A URL never holds a credential: those come from the environment, as the users of each storage know them, so that no
campaign file, log or manifest can leak one.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Self

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from rollout_assets.errors import ConfigError
from rollout_assets.parsing import expand_path

SCHEMES = ("s3", "gs", "az")
"""Schemes of the object storage that is read and written."""

CACHE_VARIABLE = "ROLLOUT_ASSETS_CACHE"
"""Environment variable that names the folder for local copies of objects."""


class ObjectUrl(str):
    """A URL of object storage without a trailing slash; ``url / name`` is the URL of what lies below it."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        """Check and normalise a URL; one that cannot be used is a ``ConfigError``."""
        scheme, separator, rest = text.partition("://")
        if not separator or scheme not in SCHEMES:
            known = ", ".join(f"{name}://" for name in SCHEMES)
            raise ConfigError(f"{without_secrets(text)}: the scheme must be one of {known}")
        bucket, *names = rest.rstrip("/").split("/")
        if "@" in bucket or "?" in rest or "#" in rest:
            raise ConfigError(
                f"{without_secrets(text)}: a URL holds a bucket and a prefix only; credentials and options come from "
                "the environment"
            )
        if not bucket or "" in names or "." in names or ".." in names or any(not part.isprintable() for part in names):
            raise ConfigError(f"{text!r}: must be {scheme}://BUCKET/PREFIX, without empty or dotted names in it")
        return super().__new__(cls, "/".join([f"{scheme}://{bucket}", *names]))

    def __truediv__(self, name: str) -> ObjectUrl:
        return ObjectUrl(f"{self}/{name}")

    @property
    def name(self) -> str:
        """The last name of the URL."""
        return self.rsplit("/", 1)[1]

    @property
    def cache_dir(self) -> Path:
        """The folder on this machine for copies of the objects below this URL; it can be removed at any time."""
        readable = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in self.split("://")[1])
        return cache_root() / f"{readable[-80:]}-{hashlib.sha256(self.encode()).hexdigest()[:12]}"

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(_validated, core_schema.str_schema())


Location = Path | ObjectUrl
"""A path, or a URL of object storage."""


def is_url(text: object) -> bool:
    """Whether a text is a URL of any scheme, and not a path."""
    return "://" in str(text)


def is_object_url(text: object) -> bool:
    """Whether a text is a URL of object storage."""
    return str(text).split("://")[0] in SCHEMES and is_url(text)


def parse_location(text: str | Path) -> Location:
    """The path or the URL that somebody wrote."""
    return ObjectUrl(str(text)) if is_url(text) else expand_path(text)


def below(base: Path, location: Location) -> Location:
    """A location of a file in ``base``: a relative path starts there, and a URL is complete by itself."""
    return location if isinstance(location, ObjectUrl) else base / location


def resolved(location: Location) -> Location:
    """A location that can be compared: two spellings of one place are equal."""
    return location if isinstance(location, ObjectUrl) else location.resolve()


def cache_root() -> Path:
    """Where copies of objects go: ``$ROLLOUT_ASSETS_CACHE``, or ``rollout_assets`` in the user's cache folder."""
    if named := os.environ.get(CACHE_VARIABLE):
        return expand_path(named).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rollout_assets"


def _validated(text: str) -> ObjectUrl:
    try:
        return ObjectUrl(text)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def server_url(text: str) -> str:
    """The URL of an HTTP server without a trailing slash; one that cannot be used is a ``ConfigError``."""
    if not text.startswith(("http://", "https://")):
        raise ConfigError(f"the URL of a server must start with http:// or https://, got {without_secrets(text)!r}")
    if without_secrets(text) != text:
        raise ConfigError(f"{without_secrets(text)}: a URL holds no credentials and no options; a token is given apart")
    return text.rstrip("/")


def without_secrets(text: str) -> str:
    """A refused URL as it may be printed: without what stands before an ``@`` or after a ``?``."""
    scheme, separator, rest = text.partition("://") if is_url(text) else ("", "", text)
    return f"{scheme}{separator}{rest.split('?')[0].split('#')[0].rpartition('@')[2]}"
