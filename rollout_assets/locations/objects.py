"""The objects below one URL: read whole or in part, listed, written on a condition, copied and removed.

Requests that fail in passing are repeated by the client with growing pauses. A conditional write whose answer was lost
may be repeated too, so a conflict is settled by reading what is there. Every request is counted, for the tests and
benchmarks that hold the number of them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import obstore
from obstore import exceptions
from obstore.store import from_url

from rollout_assets.errors import ObjectStorageError, ObjectStorageUnavailable
from rollout_assets.locations.url import ObjectUrl

REQUESTS_AT_ONCE = 16
"""Requests that one process has under way for one transfer."""

LISTED_AT_ONCE = 1_000
"""Objects that one page of a listing holds, as S3 answers them."""

_RETRIES: Any = {
    "max_retries": 6,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=8), "base": 2},
}
_CLIENT: Any = {"timeout": "120s", "connect_timeout": "10s"}
_DOWNLOAD_BLOCK = 8 << 20

_PLAIN_HTTP = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP")
"""Variables that allow an endpoint without TLS."""

Item = TypeVar("Item")
Result = TypeVar("Result")

_process_of_first_use: int | None = None


@dataclass(frozen=True)
class ObjectFact:
    """An object as a listing shows it; ``key`` is relative to the folder."""

    key: str
    size: int
    etag: str


@dataclass(frozen=True)
class TaggedBytes:
    """The content of an object with what names exactly this content, so that only this content is replaced.

    S3 and Azure go by the ``etag``, Google Cloud Storage by the ``version``.
    """

    data: bytes
    etag: str
    version: str | None = None


class ObjectFolder:
    """The objects below a URL. A missing object is a ``FileNotFoundError``, anything else ``ObjectStorageError``."""

    def __init__(self, url: ObjectUrl) -> None:
        self.url = url
        self.requests: Counter[str] = Counter()
        self._lock = Lock()

    def __str__(self) -> str:
        return self.url

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["url"])  # type: ignore[misc]

    @cached_property
    def store(self) -> Any:
        """The client; credentials and endpoint come from the environment."""
        try:
            return from_url(str(self.url), client_options=_client_options(), retry_config=_RETRIES)
        except Exception as error:  # a setting of the environment that the client does not understand
            raise ObjectStorageError(f"{self.url}: cannot be used: {_first_line(error)}") from None

    def read(self, key: str) -> bytes:
        """A whole object."""
        return self.read_tagged(key).data

    def read_tagged(self, key: str) -> TaggedBytes:
        """A whole object with its tag."""
        return self._tagged(key, self._ask("get", key, lambda: obstore.get(self.store, key)))

    def read_if_changed(self, key: str, etag: str) -> TaggedBytes | None:
        """An object with its tag, unless it still has the tag ``etag``."""
        try:
            answer = self._ask("get", key, lambda: obstore.get(self.store, key, options={"if_none_match": etag}))
        except exceptions.NotModifiedError:
            return None
        return self._tagged(key, answer)

    def read_part(self, key: str, start: int, length: int) -> bytes:
        """A byte range of an object."""
        return bytes(self._ask("get", key, lambda: obstore.get_range(self.store, key, start=start, length=length)))

    def read_beginning(self, key: str, length: int) -> tuple[bytes, int]:
        """The first bytes of an object, all of them if it is not longer, and its size, in one request."""
        wanted: Any = {"range": (0, length)}
        answer = self._ask("get", key, lambda: obstore.get(self.store, key, options=wanted))
        return bytes(self._ask("", key, answer.bytes)), answer.meta["size"]

    def listing(self, prefix: str = "") -> Iterator[ObjectFact]:
        """Every object whose key begins with the folder ``prefix``, in the order of their keys."""
        pages = self._ask("", prefix, lambda: obstore.list(self.store, prefix or None, chunk_size=LISTED_AT_ONCE))
        while True:
            page = self._ask("list", prefix, lambda: next(pages, None))
            if page is None:
                self.requests["list"] -= 1  # the client knows the end from the last page
                return
            for meta in page:
                yield ObjectFact(meta["path"], meta["size"], _quoted(meta["e_tag"]))

    def folder_names(self, prefix: str) -> list[str]:
        """Names of the folders directly below a prefix."""
        answer = self._ask("list", prefix, lambda: obstore.list_with_delimiter(self.store, prefix))
        return [path.rstrip("/").rsplit("/", 1)[-1] for path in answer["common_prefixes"]]

    def download(self, key: str, path: Path) -> None:
        """Write an object of any size to a file."""
        answer = self._ask("get", key, lambda: obstore.get(self.store, key))
        with path.open("wb") as stream:
            for block in self._blocks(key, answer.stream(min_chunk_size=_DOWNLOAD_BLOCK)):
                stream.write(block)

    def put(self, key: str, content: bytes | Path) -> None:
        """Write an object, whatever is there; a file is sent in parts if it is large."""
        self._ask("put", key, lambda: obstore.put(self.store, key, content))

    def create(self, key: str, data: bytes) -> bool:
        """Write an object only if there is none; False if there is one with other content."""
        return self._on_condition(key, data, "create")

    def replace(self, key: str, data: bytes, before: TaggedBytes) -> bool:
        """Write an object only if it is still what was read ``before``; False if it is not."""
        version = {} if before.version is None else {"version": before.version}
        return self._on_condition(key, data, {"e_tag": before.etag, **version})

    def copy(self, key: str, target: str) -> None:
        """Copy an object to another key; its bytes stay in the storage."""
        self._ask("copy", key, lambda: obstore.copy(self.store, key, target))

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are not there are no error."""
        for start in range(0, len(keys), LISTED_AT_ONCE):
            self._remove(list(keys[start : start + LISTED_AT_ONCE]))

    def upload(self, folder: Path, keys: Iterable[str], prefix: str) -> None:
        """Write files below a folder as objects below a prefix, several at a time."""
        self.at_once(lambda key: self.put(f"{prefix}/{key}", folder / key), keys)

    def at_once(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Call a function that sends requests for each item, several at a time; the first error is raised."""
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
            return list(threads.map(function, items))

    def _remove(self, keys: list[str]) -> None:
        try:
            self._ask("delete", keys[0], lambda: obstore.delete(self.store, keys))
        except FileNotFoundError:  # S3 says nothing of those that are not there, other storages stop at the first one
            for key in keys if len(keys) > 1 else ():
                self._remove([key])

    def _tagged(self, key: str, answer: Any) -> TaggedBytes:
        data = bytes(self._ask("", key, answer.bytes))
        return TaggedBytes(data, _quoted(answer.meta["e_tag"]), answer.meta["version"])

    def _blocks(self, key: str, blocks: Any) -> Iterator[Any]:
        """The blocks of an answer; a connection that breaks between them is an error like any other."""
        while (block := self._ask("", key, lambda: next(blocks, None))) is not None:
            yield block

    def _on_condition(self, key: str, data: bytes, mode: Any) -> bool:
        try:
            self._ask("put", key, lambda: obstore.put(self.store, key, data, mode=mode, use_multipart=False))
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            return self._is_ours(key, data)
        except FileNotFoundError:  # what should have been replaced is gone
            return False
        return True

    def _is_ours(self, key: str, data: bytes) -> bool:
        """Whether a refused write had happened before, in a request whose answer did not arrive."""
        try:
            return self.read(key) == data
        except FileNotFoundError:
            return False

    def _ask(self, kind: str, key: str, request: Callable[[], Result]) -> Result:
        refuse_forked_process(self.url)
        if kind:
            with self._lock:
                self.requests[kind] += 1
        try:
            return request()
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error):
                raise ObjectStorageError(f"{self.url}: there is no such bucket") from None
            raise FileNotFoundError(f"{self.url}/{key}: no such object") from None
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError, exceptions.NotModifiedError):
            raise
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, PermissionError) as error:
            raise ObjectStorageError(f"{self.url}/{key}: not allowed: {_first_line(error)}") from None
        except (exceptions.BaseError, OSError) as error:
            raise ObjectStorageUnavailable(f"{self.url}/{key}: {_first_line(error)}") from None


def refuse_forked_process(url: str) -> None:
    """Raise ``ObjectStorageError`` in a forked process whose parent has used object storage; it would wait for ever.

    The client's threads do not exist there. A torch ``DataLoader`` forks its workers unless it is told otherwise.
    """
    global _process_of_first_use
    if _process_of_first_use is None:
        _process_of_first_use = os.getpid()
    elif _process_of_first_use != os.getpid():
        raise ObjectStorageError(
            f"{url}: this process was forked after its parent had used object storage, which cannot work; start it "
            "anew, for a DataLoader with multiprocessing_context='forkserver' or 'spawn'"
        )


def _client_options() -> Any:
    plain = any(os.environ.get(name, "").lower() in ("1", "true", "yes") for name in _PLAIN_HTTP)
    return {**_CLIENT, "allow_http": True} if plain else _CLIENT


def _quoted(etag: str | None) -> str:
    """A tag as the headers of requests write it; listings of Azure leave the quotes out."""
    return f'"{etag}"' if etag and not etag.endswith('"') else etag or ""


def _first_line(error: BaseException) -> str:
    """What a client's error says, without the body of the answer and the debug text below it."""
    text = str(error).split("\n\n")[0].split("<?xml")[0].strip()
    return " ".join(text.split())[:400] or type(error).__name__
