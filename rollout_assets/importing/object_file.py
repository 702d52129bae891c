"""``objects.json`` and ``detections.json``: oriented boxes in the axes and units of the scene's mesh.

    {"objects": [{"class": "chair", "center": [1.0, 2.0, 0.45], "size": [0.5, 0.5, 0.9], "yaw_degrees": 30}]}

``size`` is the whole length along each of the box's own axes. A box is turned by ``yaw_degrees`` about the up axis, or
by ``rotation``, a matrix of three rows whose columns are the box's axes. ``moveable`` is true for what people shift
around. Detections are the same under the name ``detections``, each with a ``confidence``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rollout_assets.config import Fraction, Number, Positive
from rollout_assets.config.problems import problems_text
from rollout_assets.errors import SourceError
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.poses import Float64, make_pose
from rollout_assets.importing.frames import Frame
from rollout_assets.parsing import parse_json, read_regular

Vector = Annotated[tuple[Number, Number, Number], Field()]
Size = tuple[Positive, Positive, Positive]
_ORTHONORMAL = 1e-3


class FileBox(BaseModel):
    """One box of a file."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    class_name: str = Field(alias="class", min_length=1, max_length=100)
    center: Vector
    size: Size
    yaw_degrees: Number | None = None
    rotation: tuple[Vector, Vector, Vector] | None = None
    moveable: bool | None = None

    @model_validator(mode="after")
    def _one_turn(self) -> Self:
        if self.yaw_degrees is not None and self.rotation is not None:
            raise ValueError("give yaw_degrees or rotation, not both")
        if self.rotation is not None:
            check_rotation(np.array(self.rotation))
        return self


class FileDetection(FileBox):
    """One detection of a file."""

    confidence: Fraction


class ObjectFile(BaseModel):
    """``objects.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    objects: Annotated[tuple[FileBox, ...], Field(min_length=1)]


class DetectionFile(BaseModel):
    """``detections.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    detections: tuple[FileDetection, ...]


def read_objects(path: Path) -> tuple[FileBox, ...]:
    """The boxes of ``objects.json``."""
    return _parsed(path, ObjectFile).objects


def read_detections(path: Path) -> tuple[FileDetection, ...]:
    """The boxes of ``detections.json``."""
    return _parsed(path, DetectionFile).detections


def world_boxes(boxes: tuple[FileBox, ...], frame: Frame) -> OrientedBoxes:
    """Boxes of a file in our world, each with its own third axis as near to up as it was to the file's up axis."""
    turns = np.array([_turn(box, frame) for box in boxes]).reshape(-1, 3, 3)
    turned = frame.turn @ turns @ frame.turn.T
    centres = frame.to_world(np.array([box.center for box in boxes]).reshape(-1, 3))
    sizes = np.array([box.size for box in boxes]).reshape(-1, 3) @ np.abs(frame.turn).T * frame.metres_per_unit
    return OrientedBoxes(make_pose(turned, centres), sizes.astype(np.float32))


def check_rotation(matrix: Float64) -> None:
    """Refuse what is no rotation, and say so when it is a mirror."""
    error = np.abs(matrix @ matrix.T - np.eye(3)).max()
    if not error <= _ORTHONORMAL:
        raise ValueError(f"a rotation must have orthonormal columns; it is off by {error:.3g}")
    if np.linalg.det(matrix) < 0:
        raise ValueError("the rotation mirrors (its determinant is -1): left-handed; negate one of its columns")


def read_json(path: Path) -> Any:
    """Any JSON file; what cannot be read is named."""
    try:
        return parse_json(read_regular(path))
    except ValueError as error:
        raise SourceError(f"{path.name}: not JSON: {error}") from None


def _parsed(path: Path, model: type[Any]) -> Any:
    try:
        return model.model_validate(_with_tuples(read_json(path)))
    except ValidationError as error:
        raise SourceError(f"{path.name}: {problems_text(error, model)}") from None


def _with_tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_with_tuples(entry) for entry in value)
    return {key: _with_tuples(entry) for key, entry in value.items()} if isinstance(value, dict) else value


def _turn(box: FileBox, frame: Frame) -> Float64:
    if box.rotation is not None:
        return np.array(box.rotation)
    angle = np.radians(box.yaw_degrees or 0.0)
    c, s = np.cos(angle), np.sin(angle)
    about_z = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
    return np.asarray(frame.turn.T @ about_z @ frame.turn)
