"""What a training needs to go on as if nothing had happened, in one file that is replaced in one step.

Random numbers are not in it: every batch derives its own from the seed and its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rollout_assets.errors import TrainingError
from rollout_assets.learning.iterable import EpochPosition
from rollout_assets.learning.tensor_file import NotATensorFile, read_tensor_file, write_tensor_file

RESUME_NAME = "resume.safetensors"
"""The file beside a training's checkpoint."""

_KEY = "training"
_VERSION = 1

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class RunIdentity:
    """What a training's weights depend on: another one cannot go on in its place."""

    config: dict[str, Any]
    stores: list[str]
    scenes: list[str]

    def differences(self, other: RunIdentity) -> list[str]:
        """Fields in which another run differs, with both values."""
        return list(_differences("", asdict(self), asdict(other)))


@dataclass(frozen=True)
class RunProgress:
    """How far a training has come. ``metrics_bytes`` is the length of the metrics file then."""

    position: EpochPosition
    batches: int = 0
    epoch_loss: float = 0.0
    epoch_states: int = 0
    best_epoch: int = -1
    best_metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    metrics_bytes: int = 0
    finished: str = ""

    @property
    def epoch(self) -> int:
        """Epochs that are complete."""
        return self.position["epoch"]

    def but(self, **changes: Any) -> RunProgress:
        """The same with some values replaced."""
        return replace(self, **changes)


@dataclass(frozen=True)
class ResumePoint:
    """A run's identity, its progress, and its tensors by group: weights, optimizer, and others."""

    identity: RunIdentity
    progress: RunProgress
    groups: dict[str, Tensors]

    def write(self, path: Path) -> None:
        """Replace the file in one step."""
        document = {"version": _VERSION, "identity": asdict(self.identity), "progress": asdict(self.progress)}
        tensors = {f"{group}/{name}": value for group, own in self.groups.items() for name, value in own.items()}
        write_tensor_file(path, _KEY, document, tensors)

    @classmethod
    def read(cls, path: Path) -> ResumePoint:
        """What was written; a file that cannot be used is a ``TrainingError``."""
        try:
            file = read_tensor_file(path, _KEY)
            if file.document["version"] != _VERSION:
                raise NotATensorFile(f"is of version {file.document['version']}, this package reads {_VERSION}")
            identity, progress = (
                RunIdentity(**file.document["identity"]),
                RunProgress(**file.document["progress"]),
            )
        except (NotATensorFile, KeyError, TypeError) as error:
            raise TrainingError(f"{path}: {error}; it cannot be resumed, so begin again in another folder") from None
        groups: dict[str, Tensors] = {}
        for name, value in file.tensors.items():
            group, _, rest = name.partition("/")
            groups.setdefault(group, {})[rest] = value
        return cls(identity, progress, groups)

    def refuse_other_run(self, other: RunIdentity, path: Path) -> None:
        """Raise ``TrainingError`` if another run would go on here, naming every field in which it differs."""
        differences = self.identity.differences(other)
        if differences:
            raise TrainingError(f"{path}: cannot resume, because it was another training: {'; '.join(differences)}")


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Tensors:
    """An optimizer's state as named tensors."""
    state = optimizer.state_dict()["state"]
    return {f"{number}/{name}": value for number, own in state.items() for name, value in own.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put a state of ``optimizer_tensors`` back."""
    state: dict[int, Tensors] = {}
    for path, value in tensors.items():
        number, _, name = path.partition("/")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _differences(path: str, was: Any, now: Any) -> Iterator[str]:
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted(was.keys() | now.keys()):
            yield from _differences(f"{path}.{key}".lstrip("."), was.get(key), now.get(key))
    elif was != now:
        yield f"{path} was {_brief(was)}, is {_brief(now)} now"


def _brief(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_brief(entry) for entry in value[:3])}{', …' if len(value) > 3 else ''}]"
    return value[:12] if isinstance(value, str) else str(value)
