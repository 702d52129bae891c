"""Where everything of a campaign lies.

    <output_dir>/campaign.json                  the campaign that writes here; no other one may
                 plan.jsonl                     one line per shard; grows, never changes
                 inputs.json                    which scenes had a mesh when their rows were planned
                 plans/                         plans that were replaced, kept as evidence
                 columns/                       plan and markers in columns; they can be removed at any time
                 shards/shard-000003/           a finished shard: rollouts.zarr/, _owner.json, _SUCCESS.json (last)
                        _FAILED.shard-000003.<time>.json
                 validated/shard-000003.<digest>  that a build has validated a shard with these bytes
                 staging/shard-000003.<time>/   a build under way, or what a dead one left
                 set_aside/                     what could not be used, moved here whole, with a note why
                 versions/v000002/              a promoted store: a Zarr group with one child store per split
                 inventories/v000002.json       every file of that version with its size, time and digest
                 full_reads/v000002.json        when every byte of that version was last read, if it was
                 rollouts.zarr -> versions/v000002
                 pin.json                       after a rollback: the version that readers keep until it is lifted
                 reports/train.html             a page per split of the promoted store
                         train.second_opinion.json  what the check of that name measured
                 collected/*.jsonl              results that were collected for this campaign, if any
                 policies/4c1f…/                a training on the promoted store, by what decides its weights
                 policy -> policies/4c1f…       the latest that is finished: policy/policy.safetensors
                 evaluation/                    of that policy on held-out scenes: evaluation.json, evaluation.html
                 accepted/000002/               policies that were accepted, each with its evaluation
                 locks/                         held by live processes

A shard whose rows were all skipped has no ``rollouts.zarr``; its owner file says why for each source row.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from rollout_assets.config import CampaignConfig
from rollout_assets.files import publish_json, remove_path, rename_path, time_name, tree_status
from rollout_assets.locations.url import Location, ObjectUrl

ROLLOUT_SHARD_OWNER_FILENAME = "_owner.json"
"""Shard owner/provenance sidecar written before final promotion."""

ROLLOUT_SHARD_SUCCESS_FILENAME = "_SUCCESS.json"
"""Completion marker written last for a validated rollout shard."""

STORE_ELSEWHERE_FILENAME = "_STORE_ELSEWHERE.json"
"""In this machine's copy of a shard: its store lies in object storage and was not needed here yet."""

FAILURE_PREFIX = "_FAILED."
"""Beginning of the name of a note that a failed build leaves beside the shards; the shard's name follows."""

STORE_NAME = "rollouts.zarr"
"""Name of the store inside a shard, and of the promoted store."""


VALIDATED = "validated"
"""Folder with an empty file for every validated content of a shard."""

SILENT_FOR_S = 3_600.0
"""Seconds without a write after which an attempt of another machine is taken for dead."""


class StoredModel(BaseModel):
    """Base of what a campaign keeps as JSON, in its plan, markers and versions: frozen, and without further keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class SetAside:
    """Something that was moved out of the way, where to, and why."""

    name: str
    path: Path
    reason: str


@dataclass(frozen=True)
class CampaignLayout:
    """Paths below a campaign's output directory."""

    root: Path
    url: ObjectUrl | None = None
    """Where the campaign lies if not on a disk; ``root`` is then this machine's copy of what it needs of it."""

    @classmethod
    def of(cls, config: CampaignConfig) -> CampaignLayout:
        """The layout of a campaign."""
        place = config.shards.output_dir
        return cls(place.cache_dir, place) if isinstance(place, ObjectUrl) else cls(place)

    @property
    def store_location(self) -> Location:
        """What readers open: the link on a disk, or the URL of the pointer."""
        return self.promoted if self.url is None else self.url / STORE_NAME

    @property
    def place(self) -> str:
        """Where the campaign lies, for messages."""
        return str(self.url or self.root)

    @property
    def claim(self) -> Path:
        """Which campaign the folder belongs to."""
        return self.root / "campaign.json"

    @property
    def plan(self) -> Path:
        """The current plan."""
        return self.root / "plan.jsonl"

    @property
    def planned_inputs(self) -> Path:
        """Which scenes had a mesh when their rows were planned."""
        return self.root / "inputs.json"

    @property
    def plan_columns(self) -> Path:
        """The plan in columns; it can be removed at any time."""
        return self.root / "columns" / "plan.npz"

    @property
    def marker_columns(self) -> Path:
        """The markers of finished shards in columns; it can be removed at any time."""
        return self.root / "columns" / "markers.npz"

    @property
    def row_columns(self) -> Path:
        """The rows of the tables of finished shards in columns; it can be removed at any time."""
        return self.root / "columns" / "rows.npz"

    @property
    def replaced_plans(self) -> Path:
        """Plans of earlier configs or sources."""
        return self.root / "plans"

    @property
    def shards(self) -> Path:
        """Finished shards."""
        return self.root / "shards"

    @property
    def staging(self) -> Path:
        """Builds under way."""
        return self.root / "staging"

    @property
    def set_aside_dir(self) -> Path:
        """What was moved out of the way."""
        return self.root / "set_aside"

    @property
    def versions(self) -> Path:
        """Promoted stores."""
        return self.root / "versions"

    @property
    def inventories(self) -> Path:
        """What the files of promoted stores were when published; beside, because a Zarr group lists its files."""
        return self.root / "inventories"

    def inventory(self, version: str) -> Path:
        """What every file of one promoted store was."""
        return self.inventories / f"{version}.json"

    def full_read(self, version: str) -> Path:
        """When every byte of one promoted store was last read."""
        return self.root / "full_reads" / f"{version}.json"

    @property
    def pin(self) -> Path:
        """Which version a rollback keeps readers at."""
        return self.root / "pin.json"

    @property
    def promoted(self) -> Path:
        """The link that readers open."""
        return self.root / STORE_NAME

    @property
    def reports(self) -> Path:
        """Pages about the promoted store."""
        return self.root / "reports"

    def second_opinion(self, split: str) -> Path:
        """What was measured a second time of a promoted split."""
        return self.reports / f"{split}.second_opinion.json"

    @property
    def collected(self) -> Path:
        """Where result files are looked for."""
        return self.root / "collected"

    @property
    def policies(self) -> Path:
        """Trainings, each in a folder of its own."""
        return self.root / "policies"

    @property
    def policy(self) -> Path:
        """The link to the latest finished training."""
        return self.root / "policy"

    @property
    def evaluation(self) -> Path:
        """The evaluation of the trained policy."""
        return self.root / "evaluation"

    @property
    def accepted(self) -> Path:
        """Policies that were accepted, by number."""
        return self.root / "accepted"

    @property
    def mesh_digests(self) -> Path:
        """Where digests of mesh files are remembered; it can be removed at any time."""
        return self.root / "mesh_digests"

    def shard(self, shard_id: str) -> Path:
        """A finished shard."""
        return self.shards / shard_id

    def new_attempt(self, name: str) -> Path:
        """A fresh staging directory's path, named by what is built, when, and on which machine."""
        return self.staging / f"{name}.{time_name()}-{machine_name()}"

    def attempts(self, name: str) -> list[Path]:
        """Staging directories of one shard or of a promotion, oldest first."""
        return sorted(self.staging.glob(f"{name}.*"))

    def failures(self, shard_id: str) -> list[Path]:
        """Failure notes of a shard, oldest first."""
        return sorted(self.shards.glob(f"{FAILURE_PREFIX}{shard_id}.*.json"))

    def lock(self, name: str) -> Path:
        """The lock file of a shard, of the plan or of promotion."""
        return self.root / "locks" / f"{name}.lock"

    def move_aside(self, path: Path, reason: str) -> SetAside:
        """Move a directory out of the way, whole, with a note beside it; nothing is deleted."""
        self.set_aside_dir.mkdir(parents=True, exist_ok=True)
        name = path.name if path.parent == self.staging else f"{path.name}.{time_name()}"
        target = self.set_aside_dir / name
        publish_json(target.with_name(f"{name}.reason.json"), {"was": path.name, "reason": reason})
        rename_path(path, target)
        return SetAside(path.name, target, reason)

    def clear_attempts(self, name: str) -> tuple[SetAside, ...]:
        """Set aside what dead attempts left; of one shard only the last such leftover is kept.

        Call it with the lock of ``name`` held: then every attempt of this machine is a dead one. That of another one,
        from which the file system may not carry locks, is taken for dead when nothing was written there for long.
        """
        dead = [attempt for attempt in self.attempts(name) if is_dead_attempt(attempt)]
        if not dead:
            return ()
        for older in [*dead[:-1], *self._set_aside_attempts(name)]:
            remove_path(older)
        return (self.move_aside(dead[-1], "left by an attempt that died"),)

    def set_aside_shards(self, shard_id: str) -> list[Path]:
        """What was set aside of a shard, finished or not, the newest first."""
        return sorted((path for path in self.set_aside_dir.glob(f"{shard_id}.*") if path.is_dir()), reverse=True)

    def _set_aside_attempts(self, name: str) -> list[Path]:
        """Earlier leftovers of attempts; finished shards that were set aside carry a marker and are not among them."""
        notes = self.set_aside_dir.glob(f"{name}.*.reason.json")
        attempts = []
        for note in notes:
            folder = note.with_name(note.name.removesuffix(".reason.json"))
            if b"left by an attempt that died" in note.read_bytes():
                attempts += [path for path in (folder, note) if path.exists()]
        return attempts


def machine_name() -> str:
    """This machine, as part of a file name."""
    return "".join(letter if letter.isalnum() else "_" for letter in socket.gethostname())[:32] or "unnamed"


def is_dead_attempt(attempt: Path) -> bool:
    """Whether nobody can be at work in a staging directory, for one who holds the lock of what is built there."""
    if attempt.name.endswith(f"-{machine_name()}"):
        return True
    times = [attempt.stat().st_mtime, *(status.st_mtime for status in tree_status(attempt).values())]
    return time.time() - max(times) > SILENT_FOR_S
