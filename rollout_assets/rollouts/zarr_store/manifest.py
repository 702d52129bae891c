"""The sidecar manifest of a rollout store: how it was made, readable with any text tool.

The manifest binds a store together: the root attributes name its SHA-256, and it holds one digest per array. Canonical
bytes are sorted-key, two-space-indented ASCII JSON, so equal payloads give equal digests everywhere.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from rollout_assets.config import CampaignConfig, read_campaign_text, toml_text
from rollout_assets.errors import StoreDamaged
from rollout_assets.files import replace_bytes
from rollout_assets.parsing import parse_json, read_regular

ROLLOUT_MANIFEST_FILENAME = "manifest.json"
"""Filename of the human-readable rollout-store sidecar manifest."""

ROLLOUT_MANIFEST_VERSION = "rollout-store-manifest-v1"
"""Version tag for the top-level rollout-store manifest payload."""

PACKAGE = "rollout-assets"
"""Distribution name of this package, as the runtime provenance lists it; also the name of the command."""

InvocationMode = Literal["programmatic", "cli", "dagster"]

_PACKAGES = (PACKAGE, "numpy", "numcodecs", "polars", "pydantic", "torch", "warp-lang", "zarr")
SOURCE_SPLITS = "source_splits"
"""Key of a manifest: the source's own split by sample key, for rows of another split than the store's; or absent."""

RUNTIME_PARTS = ("python", "platform", "git", "packages")
"""What is recorded of the machine and the code that ran."""

_GIT_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class RolloutStoreInvocation:
    """How a rollout store generation run was invoked.

    ``argv`` is the command that somebody typed: `rollout-assets …`, or the program that called the package. Runs that
    Dagster's UI or daemon launch were not typed, and have none. ``raw_toml_text`` is the campaign as it is written, or
    with every default written out if it was never in a file.
    """

    mode: InvocationMode = "programmatic"
    argv: tuple[str, ...] = ()
    config_path: str | None = None
    raw_toml_text: str | None = None

    @classmethod
    def of_campaign(cls, campaign: str | Path, mode: InvocationMode | None = None) -> RolloutStoreInvocation:
        """A run of a campaign that is written down: in a file, or shipped with the package."""
        written = read_campaign_text(campaign)
        started_as, argv = _started_as(mode)
        return cls(started_as, argv, written.path.as_posix(), written.text)

    @classmethod
    def of_config(cls, config: CampaignConfig | None) -> RolloutStoreInvocation:
        """A run of a campaign that a program made; its text is the resolved campaign."""
        started_as, argv = _started_as()
        return cls(started_as, argv, None, None if config is None else toml_text(config))

    def to_jsonable(self) -> dict[str, Any]:
        """Plain JSON values; the digest of the TOML text is computed here."""
        text = self.raw_toml_text
        return {
            "mode": self.mode,
            "argv": list(self.argv),
            "config_path": self.config_path,
            "raw_toml_sha256": None if text is None else hashlib.sha256(text.encode()).hexdigest(),
            "raw_toml_text": text,
        }


@dataclass(frozen=True)
class RolloutStoreManifestContext:
    """What a higher-level writer knows about a run and the store itself does not."""

    writer_config: Mapping[str, Any] | None = None
    invocation: RolloutStoreInvocation = RolloutStoreInvocation()
    runtime: Mapping[str, Any] = field(default_factory=dict)
    shard: Mapping[str, Any] | None = None

    @classmethod
    def here(
        cls,
        config: CampaignConfig | None = None,
        invocation: RolloutStoreInvocation | None = None,
        shard: Mapping[str, Any] | None = None,
    ) -> RolloutStoreManifestContext:
        """The context of a run on this machine, with its runtime provenance, and of its campaign if there is one."""
        written = None if config is None else config.model_dump(mode="json")
        return cls(written, invocation or RolloutStoreInvocation.of_config(config), runtime_provenance(), shard)

    def to_jsonable(self) -> dict[str, Any]:
        """The manifest's ``generation`` section."""
        return {
            "writer_config": None if self.writer_config is None else dict(self.writer_config),
            "invocation": self.invocation.to_jsonable(),
            "runtime": dict(self.runtime),
            "shard": None if self.shard is None else dict(self.shard),
        }


def _started_as(mode: InvocationMode | None = None) -> tuple[InvocationMode, tuple[str, ...]]:
    """How this process was started, and by which command; worker processes have the arguments of their parent."""
    own = Path(sys.argv[0]).stem == PACKAGE if sys.argv else False
    mode = mode or ("cli" if own else "programmatic")
    if own or mode == "cli":
        return mode, (PACKAGE, *sys.argv[1:])
    return mode, () if mode == "dagster" else tuple(sys.argv)


def runtime_provenance() -> dict[str, Any]:
    """Python, platform, package versions and the commit of the checkout, if any. Nothing of the environment.

    Asked once per process: the code that runs is the code that was there when it started.
    """
    return json.loads(_runtime_provenance())


@cache
def _runtime_provenance() -> str:
    return json.dumps(
        {
            "python": sys.version.split()[0],
            "platform": platform.platform(),
            "git": _git_state(Path(__file__).resolve().parent),
            "packages": {name: installed_version(name) for name in _PACKAGES},
        }
    )


def manifest_json_bytes(payload: Mapping[str, Any]) -> bytes:
    """The canonical bytes of a manifest; NaN and infinities are refused because they are not JSON."""
    return json.dumps(payload, indent=2, sort_keys=True, ensure_ascii=True, allow_nan=False).encode("ascii")


def write_rollout_store_manifest(store_dir: Path, payload: Mapping[str, Any]) -> str:
    """Write ``manifest.json`` beside ``zarr.json``, whole or not at all; returns its SHA-256."""
    data = manifest_json_bytes(payload)
    replace_bytes(store_dir / ROLLOUT_MANIFEST_FILENAME, data)
    return hashlib.sha256(data).hexdigest()


def read_rollout_store_manifest(store_dir: Path | str) -> dict[str, Any]:
    """The manifest of a local store; a missing or unreadable one is ``StoreDamaged``."""
    path = Path(store_dir) / ROLLOUT_MANIFEST_FILENAME
    try:
        return parse_manifest(read_regular(path))
    except OSError as error:
        raise StoreDamaged(str(path), f"cannot be read: {error.strerror}") from None


def names_campaign(store_dir: Path | str) -> bool:
    """Whether a local store's manifest records the campaign that made it; an unreadable one does not."""
    try:
        generation = read_rollout_store_manifest(store_dir).get("generation")
    except StoreDamaged:
        return False
    return isinstance(generation, dict) and generation.get("writer_config") is not None


def parse_manifest(data: bytes) -> dict[str, Any]:
    """Manifest bytes as a payload; anything but a JSON object is ``StoreDamaged``."""
    try:
        payload = parse_json(data)
    except ValueError as error:
        raise StoreDamaged(ROLLOUT_MANIFEST_FILENAME, f"is not JSON: {error}") from None
    if not isinstance(payload, dict):
        raise StoreDamaged(ROLLOUT_MANIFEST_FILENAME, f"must be a JSON object, got {type(payload).__name__}")
    return payload


def _git_state(folder: Path) -> dict[str, Any]:
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {"available": False}
    status = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {
        "available": True,
        "commit": commit,
        "branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD"),
        "dirty": bool(status),
    }


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ("git", "-C", str(folder), *arguments), capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def installed_version(package: str) -> str | None:
    """The version of a distribution; None when it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
