"""Where everything of a campaign lies.

    <output_dir>/campaign.json                  the campaign that writes here; no other one may
                 plan.jsonl                     one line per shard; grows, never changes
                 plans/                         plans that were replaced, kept as evidence
                 shards/shard-000003/           a finished shard: rollouts.zarr/, _owner.json, _SUCCESS.json (last)
                        _FAILED.shard-000003.<time>.json
                 staging/shard-000003.<time>/   a build under way, or what a dead one left
                 set_aside/                     what could not be used, moved here whole, with a note why
                 versions/v000002/              a promoted store: a Zarr group with one child store per split
                 inventories/v000002.json       every file of that version with its size, time and digest
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

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from rollout_assets.files import publish_json, remove_path, rename_path, time_name

ROLLOUT_SHARD_OWNER_FILENAME = "_owner.json"
"""Shard owner/provenance sidecar written before final promotion."""

ROLLOUT_SHARD_SUCCESS_FILENAME = "_SUCCESS.json"
"""Completion marker written last for a validated rollout shard."""

STORE_NAME = "rollouts.zarr"
"""Name of the store inside a shard, and of the promoted store."""


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

    @property
    def claim(self) -> Path:
        """Which campaign the folder belongs to."""
        return self.root / "campaign.json"

    @property
    def plan(self) -> Path:
        """The current plan."""
        return self.root / "plan.jsonl"

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
        """A fresh staging directory's path, named by what is built and when."""
        return self.staging / f"{name}.{time_name()}"

    def attempts(self, name: str) -> list[Path]:
        """Staging directories of one shard or of a promotion, oldest first."""
        return sorted(self.staging.glob(f"{name}.*"))

    def failures(self, shard_id: str) -> list[Path]:
        """Failure notes of a shard, oldest first."""
        return sorted(self.shards.glob(f"_FAILED.{shard_id}.*.json"))

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

        Call it with the lock of ``name`` held: then every attempt is a dead one.
        """
        dead = self.attempts(name)
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
