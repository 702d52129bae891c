"""Power loss: what a disk may hold if the power goes at any point of an operation, made so that it can be restarted.

``Recording`` watches a folder while an operation works in it. A flush of a file keeps its content, a flush of a folder
keeps its names, and ``syncfs`` keeps both for the tree that it was called for. Whatever else happened since, the disk
may have or not: after every change of a name and every flush the recording adds the states in which

- nothing that was not flushed is there, or
- all changes of names but the last few are there and any of those few, or only some of those few,

each with the content of files as it was flushed last, with zeros where more was written, and as it was written. Names
changed by one rename change together. Files that native code writes are found by looking at the folder, so it does not
matter who writes them: of such a file only what a flush has seen counts. Equal states are kept once.
"""

from __future__ import annotations

import builtins
import hashlib
import io
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rollout_assets import files

REORDERED = 2
"""The last changes of names of which any may be on the disk without the others."""

_CHANGES = ("rename", "replace", "link", "symlink", "unlink", "remove", "rmdir", "mkdir", "truncate")
_CHANGED_PATHS = {"rename": slice(0, 2), "replace": slice(0, 2), "link": slice(1, 2), "symlink": slice(1, 2)}
"""Which arguments are names that change; of the others it is the first."""

_FLUSHES = ("fsync", "fdatasync")

Names = dict[str, int]
"""Names in a folder, each with the number of what it leads to."""

Content = tuple[bytes, int]
"""Bytes of a file, and the time of its last write."""


@dataclass
class Tree:
    """A folder's folders, links and files by name."""

    folders: dict[str, Tree] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    files: dict[str, Content] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Make the folder and everything in it."""
        folder.mkdir(exist_ok=True)
        for name, tree in self.folders.items():
            tree.write(folder / name)
        for name, target in self.links.items():
            (folder / name).symlink_to(target)
        for name, (data, written_ns) in self.files.items():
            (folder / name).write_bytes(data)
            os.utime(folder / name, ns=(written_ns, written_ns))


@dataclass(frozen=True)
class CrashState:
    """What the disk may hold after a crash, and after which event that is.

    ``returned`` says that the operation had reported success before.
    """

    event: str
    how: str
    tree: Tree
    returned: bool

    def __str__(self) -> str:
        return f"{self.event}, {self.how}{', after the operation has returned' * self.returned}"

    def restore(self, root: Path) -> None:
        """Let a folder be what the disk holds."""
        shutil.rmtree(root, ignore_errors=True)
        self.tree.write(root)


@dataclass
class _Node:
    """A folder, link or file, whatever names lead to it: what it is now, and what of it is flushed."""

    kind: str
    names: Names = field(default_factory=dict)
    flushed_names: Names = field(default_factory=dict)
    content: Content = (b"", 0)
    flushed: Content = (b"", 0)
    target: str = ""


ContentOf = Callable[[_Node], Content]
"""What the disk holds of a file."""

Change = dict[tuple[int, str], int | None]
"""Folder and name -> what it leads to after one event; None if the name is gone."""


class Recording:
    """The crash states of what happens in a folder within a ``with`` block.

    ``quiet`` tells of a path, as the names below the folder, whether changes of that name alone are no event: they are
    seen at the next event.
    """

    def __init__(self, root: Path, quiet: Callable[[tuple[str, ...]], bool] = lambda _: False) -> None:
        self.root = root
        self.events = 0
        self._quiet = quiet
        self._states: dict[tuple[bytes, bool], CrashState] = {}
        self._settled: dict[int, bytes] = {}
        self._settled_trees: dict[int, Tree] = {}
        self._nodes: dict[int, _Node] = {}
        self._by_inode: dict[int, int] = {}
        self._pending: list[Change] = []
        self._lock = threading.RLock()
        self._patches = ExitStack()
        self._returned = False

    @property
    def states(self) -> list[CrashState]:
        """Every distinct state, in the order of the events."""
        return list(self._states.values())

    def __enter__(self) -> Recording:
        self.root.mkdir(parents=True, exist_ok=True)
        self._look()
        self._pending.clear()
        self._flush_below(self._number(self.root))
        for name in (*_CHANGES, *_FLUSHES):
            self._patches.enter_context(patch.object(os, name, self._watched(name, getattr(os, name))))
        self._patches.enter_context(patch.object(files, "_syncfs", self._syncfs))
        for module in (builtins, io):
            self._patches.enter_context(patch.object(module, "open", self._opening(module.open)))
        self._patches.enter_context(patch.object(os, "open", self._opening(os.open)))
        return self

    def __exit__(self, *error: Any) -> None:
        self._patches.close()
        if error[0] is None:
            self._returned = True
            self._add("the end")

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            with self._lock:
                paths = [self._below(path, options) for path in given[_CHANGED_PATHS.get(name, slice(0, 1))]]
                result = real(*given, **options)
                named = [path for path in paths if path is not None]
                if named and (name in _FLUSHES or not all(map(self._quiet, named))):
                    self._event(f"{name} {' -> '.join('/'.join(path) or '.' for path in named)}")
                    if name in _FLUSHES:
                        self._flush(named[0])
                        self._add(f"{name} {'/'.join(named[0]) or '.'} done")
                return result

        return call

    def _opening(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, how: Any = "r", *rest: Any, **options: Any) -> Any:
            mode = options.get("mode", how)
            writes = bool(mode & (os.O_CREAT | os.O_TRUNC)) if isinstance(mode, int) else bool(set("wax+") & set(mode))
            named = self._below(path, options) if writes else None
            if named is None or self._quiet(named):
                return real(path, how, *rest, **options)
            with self._lock:
                opened = real(path, how, *rest, **options)
                self._event(f"open {'/'.join(named)}")
                return opened

        return call

    def _syncfs(self, handle: int) -> bool:
        with self._lock:
            named = self._below(handle, {})
            if named is not None:
                self._event(f"syncfs {'/'.join(named)}")
                self._flush_below(self._number(self.root.joinpath(*named)))
                self._add(f"syncfs {'/'.join(named)} done")
        return True

    def _below(self, path: Any, options: Mapping[str, Any]) -> tuple[str, ...] | None:
        """The names of a path or handle below the folder; None if it does not lie there."""
        if isinstance(path, int):
            text = str(Path(f"/proc/self/fd/{path}").readlink())
        elif isinstance(path, str | os.PathLike):
            text = os.fspath(path)
            if (handle := options.get("dir_fd", options.get("src_dir_fd"))) is not None:
                text = str(Path(f"/proc/self/fd/{handle}").readlink() / text)
        else:
            return None
        place = Path(os.path.abspath(text))  # noqa: PTH100 - links are not followed
        return place.relative_to(self.root).parts if place.is_relative_to(self.root) else None

    def _event(self, what: str) -> None:
        self.events += 1
        self._look()
        self._add(what)

    def _look(self) -> None:
        """Take over the present names and contents; what has changed since the last time is one change."""
        change: Change = {}
        seen: dict[int, int] = {}
        root = self._node(self.root.lstat(), "folder", seen)
        waiting = [(root, str(self.root))]
        while waiting:
            number, place = waiting.pop()
            node = self._nodes[number]
            names: Names = {}
            with os.scandir(place) as entries:
                for entry in entries:
                    names[entry.name] = self._entry(entry, seen)
                    if self._nodes[names[entry.name]].kind == "folder":
                        waiting.append((names[entry.name], entry.path))
            for name in names.keys() | node.names.keys():
                if names.get(name) != node.names.get(name):
                    change[number, name] = names.get(name)
            node.names = names
        self._by_inode = seen
        if change:
            self._pending.append(change)

    def _entry(self, entry: os.DirEntry[str], seen: dict[int, int]) -> int:
        status = entry.stat(follow_symlinks=False)
        if entry.is_symlink():
            number = self._node(status, "link", seen)
            self._nodes[number].target = str(Path(entry.path).readlink())
            return number
        if entry.is_dir():
            return self._node(status, "folder", seen)
        number = self._node(status, "file", seen)
        node = self._nodes[number]
        if (len(node.content[0]), node.content[1]) != (status.st_size, status.st_mtime_ns):
            node.content = _read(entry.path)
        return number

    def _node(self, status: os.stat_result, kind: str, seen: dict[int, int]) -> int:
        number = seen.get(status.st_ino, self._by_inode.get(status.st_ino, -1))
        if number < 0 or self._nodes[number].kind != kind:
            number = len(self._nodes)
            self._nodes[number] = _Node(kind)
        seen[status.st_ino] = number
        return number

    def _number(self, path: Path) -> int:
        return self._by_inode[path.lstat().st_ino]

    def _flush(self, named: tuple[str, ...]) -> None:
        """Keep the content of a file, or the names in a folder; of a rename both of its folders are kept."""
        path = self.root.joinpath(*named)
        node = self._nodes[number := self._number(path)]
        if node.kind == "file":
            node.flushed = node.content = _read(str(path))
            return
        later: Change = {}
        for change in reversed(self._pending):
            if any(folder == number for folder, _ in change):
                later = change | later
            for place in change.keys() & later.keys():
                del change[place]
        for (folder, name), target in later.items():
            _set(self._nodes[folder].flushed_names, name, target)
        self._pending = [change for change in self._pending if change]
        node.flushed_names = dict(node.names)

    def _flush_below(self, number: int) -> None:
        node = self._nodes[number]
        node.flushed, node.flushed_names = node.content, dict(node.names)
        for change in self._pending:
            for place in [place for place in change if place[0] == number]:
                del change[place]
        self._pending = [change for change in self._pending if change]
        for below in node.names.values():
            self._flush_below(below)

    def _add(self, event: str) -> None:
        """Add the states in which the power may go now."""
        self._settled.clear()
        self._settled_trees.clear()
        last = self._pending[-REORDERED:]
        earlier = self._pending[: len(self._pending) - len(last)]
        for before, *chosen in product(*[(False, True)] * (1 + len(last))):
            if before and not earlier:
                continue
            changes = [
                *(earlier if before else ()),
                *(change for change, there in zip(last, chosen, strict=True) if there),
            ]
            unflushed = len(self._pending)
            how = f"{len(changes)} of {unflushed} unflushed changes of names on the disk"
            for kind, content in _CONTENTS.items():
                self._keep(event, f"{how}, {kind}", changes, content)

    def _keep(self, event: str, how: str, changes: list[Change], content: ContentOf) -> None:
        names: dict[int, Names] = {}
        for change in changes:
            for (folder, name), target in change.items():
                changed = names.setdefault(folder, dict(self._nodes[folder].flushed_names))
                _set(changed, name, target)
        root = self._number(self.root)
        key = self._digest(root, (), names, content)[0], self._returned
        if key not in self._states:
            tree, _ = self._tree(root, names, content)
            self._states[key] = CrashState(f"{self.events}: {event}", how, tree, self._returned)

    def _digest(
        self, number: int, path: tuple[str, ...], names: Mapping[int, Names], content: ContentOf
    ) -> tuple[bytes, bool]:
        """Digest of what is below a folder but for what is quiet; and whether it is the same in every state."""
        if number in self._settled:
            return self._settled[number], True
        node = self._nodes[number]
        settled = node.names == node.flushed_names
        digest = hashlib.sha256()
        for name, below in sorted(names.get(number, node.flushed_names).items()):
            if self._quiet((*path, name)):
                continue
            child = self._nodes[below]
            known: bytes = child.target.encode()
            if child.kind == "folder":
                known, same = self._digest(below, (*path, name), names, content)
                settled &= same
            elif child.kind == "file":
                known = content(child)[0]
                settled &= child.flushed == child.content
            digest.update(f"{name}\0{child.kind}\0{len(known)}\0".encode() + known)
        if settled:
            self._settled[number] = digest.digest()
        return digest.digest(), settled

    def _tree(self, number: int, names: Mapping[int, Names], content: ContentOf) -> tuple[Tree, bool]:
        """What is below a folder, and whether it is the same in every state; states share such parts."""
        if number in self._settled_trees:
            return self._settled_trees[number], True
        node, tree = self._nodes[number], Tree()
        settled = node.names == node.flushed_names
        for name, below in names.get(number, node.flushed_names).items():
            child = self._nodes[below]
            if child.kind == "folder":
                tree.folders[name], same = self._tree(below, names, content)
                settled &= same
            elif child.kind == "link":
                tree.links[name] = child.target
            else:
                tree.files[name] = content(child)
                settled &= child.flushed == child.content
        if settled:
            self._settled_trees[number] = tree
        return tree, settled


def _set(names: Names, name: str, target: int | None) -> None:
    if target is None:
        names.pop(name, None)
    else:
        names[name] = target


def _with_zeros(node: _Node) -> Content:
    """What is flushed, and zeros up to the present size: a file's length may reach the disk before its bytes."""
    return node.flushed[0] + bytes(max(0, len(node.content[0]) - len(node.flushed[0]))), node.content[1]


_CONTENTS: dict[str, ContentOf] = {
    "of files what was flushed": lambda node: node.flushed,
    "zeros for what was written": _with_zeros,
    "of files all that was written": lambda node: node.content,
}


def _read(path: str) -> Content:
    handle = os.open(path, os.O_RDONLY)
    try:
        status = os.fstat(handle)
        return os.pread(handle, max(status.st_size, 1), 0), status.st_mtime_ns
    finally:
        os.close(handle)


@dataclass(frozen=True)
class Operation:
    """Something that may be interrupted: what it does, and what must hold after a restart.

    ``check`` gets whether the operation had returned before the crash; it runs what an operator would run.
    """

    name: str
    act: Callable[[], object]
    check: Callable[[bool], None]


@dataclass(frozen=True)
class Enumeration:
    """Crash states of an operation that were restarted, and those after which something did not hold."""

    operation: str
    events: int
    states: int
    tried: int
    failures: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.operation}: {self.events} events, {self.states} distinct states, {self.tried} restarted, "
            f"{len(self.failures)} failures"
        )


def recorded(
    operation: Operation, root: Path, quiet: Callable[[tuple[str, ...]], bool] = lambda _: False
) -> tuple[Operation, Recording]:
    """Run an operation undisturbed in a folder, with the states in which the power may go meanwhile."""
    with Recording(root, quiet) as recording:
        operation.act()
    return operation, recording


def restarted(operation: Operation, recording: Recording, most: int | None = None) -> Enumeration:
    """Restart an operation from each of its crash states, or from ``most`` of them spread over it."""
    states = recording.states
    chosen = states if most is None else spread(states, most)
    failures = []
    for state in chosen:
        state.restore(recording.root)
        try:
            operation.check(state.returned)
        except Exception as error:
            failures.append(f"{operation.name}, {state}: {type(error).__name__}: {error}")
    return Enumeration(operation.name, recording.events, len(states), len(chosen), tuple(failures))


def spread(states: list[CrashState], most: int) -> list[CrashState]:
    """Some of the states, evenly over the operation, the last one among them."""
    count = min(most, len(states))
    return [states[(number + 1) * len(states) // count - 1] for number in range(count)]
