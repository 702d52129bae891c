"""Every error this package raises on purpose.

    RolloutAssetsError
    ├── ConfigError          a campaign file or a value in it cannot be used
    ├── SourceError          the VIN source store
    │   ├── SourceDamaged      it disagrees with its own format; carries every problem; a DataError
    │   ├── SourceVersionUnknown  a format version that cannot be read; says which can
    │   ├── ImportRefused      scenes of which none can be imported; carries every reason; a DataError
    │   └── SourceRowMissing   a row, key or split that the store does not have
    ├── NotRegularFile       a pipe, a socket or a device where a file must be; also an OSError
    ├── DataError            what the input's bytes say, whoever reads them: a source row may be skipped for it
    │   ├── MeshError          a scene has no mesh, or its mesh cannot be used
    │   └── GeometryError      an array that is not the pose, box, camera or point it claims to be
    ├── MachineFault         what the machine did not do this time: no row is skipped for it; try again
    │   ├── DeviceError        the requested compute device is not there, or cannot be used
    │   │   └── DeviceMemoryError  the device has no memory left for a batch
    │   ├── WorkerDied         a worker process was killed or crashed; names its task
    │   ├── ReadingsDiffer     the same bytes were read twice and said two things
    │   ├── InputMissing       an input that a shard was planned or built with is not there; a CampaignError
    │   └── ShardFailed        a shard could not be built; nothing partial of it is visible; a CampaignError
    ├── ObjectStorageError   object storage that cannot be used: no bucket, no permission, conditions ignored
    │   └── ObjectStorageUnavailable  it did not answer, also not when asked again; a MachineFault
    ├── PolicyRefused        a policy or checkpoint that cannot be used; says what was found and what is needed
    ├── TrainingError        a training run, its data or its files
    ├── EvaluationError      an evaluation of policies that cannot be finished, read or compared
    ├── RolloutFailed        one rollout could not be finished; names its root and index
    ├── RowRefused           a row that cannot be run as asked; names the field
    ├── PayloadDamaged       bytes that are not the chains or the record they claim to be
    ├── ServerError          a rollout server did not do what was asked of it
    │   ├── ServerUnavailable  it is busy, going down, unreachable or late; asking again may help
    │   └── AnswerRefused      it answered something that cannot be used
    ├── CampaignError        a campaign's plan, shards or promoted store
    │   ├── ShardDrift         config or source rows are not those that a shard was planned for
    │   ├── FewerRecords       a shard would replace a finished one that has more records
    │   ├── ShardBusy          another process holds the lock
    │   ├── PointerMoved       somebody else moved readers meanwhile
    │   └── PromotionRefused   shards that cannot become a promoted store; carries every reason
    ├── CollectionError      a batch collection, its servers or its files
    │   ├── InputsRefused      input lines that cannot be run; carries every problem with its line
    │   ├── ResultsRefused     a result that is malformed, or there twice; names where
    │   └── ResumeRefused      a collection that cannot go on where it stopped; names what differs
    └── StoreError           a rollout store cannot be written, opened or read
        ├── StoreExists        the destination is already there
        ├── NotReadBack        what was just written does not read back; a MachineFault
        ├── RecordRefused      a record that does not fit the store; nothing of it is published
        ├── StoreDamaged       a part of the store that cannot be read as the schema says; names the array
        ├── StateMissing       an index beyond the states of a dataset; also an IndexError
        └── ReplayRefused      a campaign or source that cannot recompute what a store holds; names what differs

A message says what, where and what next, with the offending value. The command line prints it as one line.

A read or write that the system refuses stays the ``OSError`` that it is: wrapped into an error about the data it would
be taken for one. Only a file that is repeatably absent says something about the data.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any, ClassVar


class RolloutAssetsError(Exception):
    """Base of all errors with a message meant for the user. They can be sent from one process to another."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _with_state, (type(self), str(self), self.__dict__)


def _with_state(kind: type[RolloutAssetsError], message: str, state: dict[str, Any]) -> RolloutAssetsError:
    """An error again, without its constructor, whose arguments the message does not tell."""
    error = kind.__new__(kind, message)
    error.__dict__.update(state)
    return error


def counted(count: int, noun: str) -> str:
    """``1 problem``, ``2 problems``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def visible(text: str, keep: str = "\n") -> str:
    """Text as it can be printed anywhere: control characters and halves of surrogate pairs as escapes, ``\\x1b``.

    Names, paths and values of others may hold anything; unescaped they could move the cursor, or end the program.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


def error_line(message: str) -> str:
    """A message as one line of reasonable length, and one more for each entry of its list of problems."""
    first, *entries = message.split(_ENTRY)
    return _ENTRY.join(_shortened(visible(part, keep="")) for part in (first, *entries))


_ENTRY = "\n  - "
_LONGEST_LINE = 2_000


def _shortened(line: str) -> str:
    half = _LONGEST_LINE // 2
    return line if len(line) <= _LONGEST_LINE else f"{line[:half]} … {line[-half:]}"


class _WithProblems(RolloutAssetsError):
    """An error that lists every problem, one a line, after a summary."""

    summary: str

    def __init__(self, where: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        shown = "".join(f"\n  - {problem}" for problem in self.problems)
        summary = self.summary.format(problems=counted(len(self.problems), "problem"))
        super().__init__(f"{where}: {summary}{shown}")


class ConfigError(RolloutAssetsError):
    """A campaign file or a value in it cannot be used."""


class DataError(RolloutAssetsError):
    """What the input's bytes say, whoever reads them and however often. Only for this may a source row be skipped.

    ``skip_reason`` is how the row is counted then.
    """

    skip_reason: ClassVar[str]


class NotRegularFile(RolloutAssetsError, OSError):
    """A pipe, a socket or a device where a file must be: reading it may never end. It is not opened again."""


class MachineFault(RolloutAssetsError):
    """What the machine did not do this time. It says nothing about the data, and the same again may succeed."""


class ReadingsDiffer(MachineFault):
    """The same bytes were read twice and said two things: the disk or the memory of this machine is not sound."""


class ObjectStorageError(RolloutAssetsError):
    """Object storage that cannot be used as it is: its bucket, the credentials, or the promises that it keeps."""


class ObjectStorageUnavailable(ObjectStorageError, MachineFault):
    """Object storage that did not answer, or answered with a fault of its own, also when it was asked again."""


class SourceError(RolloutAssetsError):
    """The VIN source store cannot be used."""


class SourceDamaged(_WithProblems, SourceError, DataError):
    """A source store that disagrees with its format; ``problems`` lists everything found, not only the first."""

    summary = "{problems}"
    skip_reason = "SOURCE_DAMAGED"


class SourceVersionUnknown(SourceError):
    """A source store of a format version that cannot be read. It may well be sound, so no row is skipped for it."""


class ImportRefused(_WithProblems, SourceError, DataError):
    """Scenes of which none can be imported; ``problems`` lists every one with its reason."""

    summary = "{problems}"


class SourceRowMissing(SourceError):
    """A row, key or split that the store does not have."""


class MeshError(DataError):
    """A scene has no mesh, or its mesh cannot be used."""

    skip_reason = "MESH_UNUSABLE"


class GeometryError(DataError, ValueError):
    """An array that is not the pose, box, camera or point set it claims to be."""

    skip_reason = "GEOMETRY_UNUSABLE"


class DeviceError(MachineFault):
    """The requested compute device is not available."""


class DeviceMemoryError(DeviceError):
    """The device has no memory left, not even for the smallest batch."""


class WorkerDied(MachineFault):
    """A worker process that was killed or crashed while it ran ``task``."""

    def __init__(self, task: str, exit_code: int) -> None:
        self.task = task
        self.exit_code = exit_code
        end = f"exit code {exit_code}" if exit_code >= 0 else f"signal {-exit_code} ({signal.strsignal(-exit_code)})"
        super().__init__(f"{task}: its worker process was ended by {end}; run it again")


class StoreError(RolloutAssetsError):
    """A rollout store cannot be written, opened or read."""


class StoreExists(StoreError):
    """The destination of a new store is already there."""


class NotReadBack(StoreError, MachineFault):
    """A part of a store that does not read back as it was written a moment before."""


class RecordRefused(StoreError):
    """A record that does not fit the store: mixed splits, conflicting identities, wrong sizes, non-finite poses."""


class StoreDamaged(StoreError):
    """A part of a store that cannot be read as the schema says; ``where`` names the array or file.

    Torch builds the error of a ``DataLoader`` worker again from its text alone, so a single argument is the message.
    """

    def __init__(self, where: str, problem: str = "") -> None:
        self.where = where
        self.problem = problem
        super().__init__(f"{where}: {problem}" if problem else where)


class StateMissing(StoreError, IndexError):
    """An index beyond the states of a dataset."""


class ReplayRefused(StoreError):
    """A campaign or source that cannot recompute what a store holds; the message names what differs."""


class CampaignError(RolloutAssetsError):
    """A campaign's plan, shards or promoted store cannot be used as asked."""


class ShardDrift(CampaignError):
    """Config or source rows are not those that a shard was planned for."""


class InputMissing(CampaignError, MachineFault):
    """An input that a shard was planned or built with is not there: a disk that is not mounted, a file that is lost."""


class FewerRecords(CampaignError):
    """A new shard with fewer records than the finished one that it would replace."""


class ShardBusy(CampaignError):
    """Another process holds what this one needs; it is released however that process ends."""


class PointerMoved(CampaignError):
    """Somebody else moved readers to another version between reading the pointer and replacing it."""


class ShardFailed(CampaignError, MachineFault):
    """A shard could not be built; nothing partial of it is visible, and it can be tried again."""


class PromotionRefused(_WithProblems, CampaignError):
    """Shards that cannot become a promoted store; ``problems`` lists every reason."""

    summary = "promotion refused"


class PolicyRefused(RolloutAssetsError):
    """A policy or a checkpoint that cannot be used."""


class TrainingError(RolloutAssetsError):
    """A training run that cannot be made, or cannot go on where it stopped."""


class EvaluationError(RolloutAssetsError):
    """An evaluation of policies that cannot be finished, read, or compared with another one."""


class RolloutFailed(RolloutAssetsError):
    """One rollout could not be finished; the message names its root and index."""


class RowRefused(RolloutAssetsError):
    """A row that cannot be run as asked; ``field`` is the part of it at fault. Asking again does not help."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(f"{field}: {problem}")


class PayloadDamaged(RolloutAssetsError):
    """Bytes that are not the chains or the record they claim to be."""


class ServerError(RolloutAssetsError):
    """A rollout server did not do what was asked of it; ``error_class`` is its own name for what went wrong."""

    def __init__(self, message: str, *, error_class: str | None = None) -> None:
        self.error_class = error_class or type(self).__name__
        super().__init__(message)


class ServerUnavailable(ServerError):
    """A server that is busy, going down, unreachable or late; asking again after ``retry_after_s`` may help.

    ``busy`` says that it did not try, because it has too much to do.
    """

    def __init__(
        self, message: str, retry_after_s: float = 0.0, *, busy: bool = False, error_class: str | None = None
    ) -> None:
        self.retry_after_s, self.busy = retry_after_s, busy
        super().__init__(message, error_class=error_class)


class AnswerRefused(ServerError):
    """An answer that cannot be used: torn, twice, missing, or about something that was not asked."""


class CollectionError(RolloutAssetsError):
    """A batch collection, its servers or its files cannot be used as asked."""


class InputsRefused(_WithProblems, CollectionError):
    """Input lines that cannot be run; ``problems`` lists what is wrong with them, each with its line."""

    def __init__(self, where: str, problems: Sequence[str], lines: int) -> None:
        self.summary = f"{counted(lines, 'line')} cannot be run"
        super().__init__(where, problems)


class ResultsRefused(CollectionError):
    """A result that is malformed, or there twice."""


class ResumeRefused(CollectionError):
    """A collection that cannot go on where it stopped, because something it depends on is not what it was."""


_TRYING_AGAIN_HELPS = (MachineFault, ShardBusy, ServerUnavailable)

_NO_THREAD = "can't start new thread"
"""What Python says when the system gives it no further thread, which it raises as a plain ``RuntimeError``."""


def may_pass(error: BaseException | None) -> bool:
    """Whether the same again may succeed: after a fault of the machine or of the program, not of data or user."""
    if isinstance(error, RolloutFailed):
        return may_pass(error.__cause__)
    return not isinstance(error, RolloutAssetsError) or isinstance(error, _TRYING_AGAIN_HELPS)


def passes_soon(error: BaseException | None) -> bool:
    """Whether the same may succeed seconds later: no disk is mounted and no file restored that fast."""
    return may_pass(error) and not isinstance(error, InputMissing)


def is_fault(error: BaseException) -> bool:
    """Whether the system refused a read, memory or a thread, so that an exception says nothing about the data.

    A decoder may raise anything on damaged bytes, so whoever takes its exceptions for damage asks here first.
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError | NotRegularFile):
        return False
    refused = isinstance(error, OSError | MemoryError | MachineFault) or _NO_THREAD in str(error)
    return refused or any(is_fault(other) for other in (error.__cause__, error.__context__) if other is not None)
