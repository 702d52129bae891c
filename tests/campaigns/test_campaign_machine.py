"""One campaign, two actors and whatever happens to its files: in any order, readers keep what they have.

An operator uses the functions behind the commands, and Dagster's sensors and jobs work on the same folder. Inputs
disappear and come back, shards are damaged, the campaign is edited. After every step the folder is read by other means
than the steps use, and in the end the operator repairs what is broken, whereupon everything must be promoted.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from rollout_assets import errors
from rollout_assets.campaigns.cleaning.clean import clean_campaign
from rollout_assets.campaigns.layout import STORE_NAME
from rollout_assets.campaigns.markers import owner_if_finished, validated_version, write_success
from rollout_assets.campaigns.pin import read_pin
from rollout_assets.campaigns.plan import (
    open_source,
    read_rollout_shard_manifest,
    write_rollout_shard_manifest_from_config,
)
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.run import run_campaign
from rollout_assets.campaigns.shard import shard_problems
from rollout_assets.campaigns.versions import PromotedVersion, promoted_versions, rollback_promotion, unpin_promotion
from rollout_assets.defs import keys as names
from rollout_assets.defs.records import materialized_version, validated_versions
from rollout_assets.errors import RolloutAssetsError
from rollout_assets.files import publish_json, seal_tree, stamp_tree
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.validation import validate_rollout_zarr_store
from rollout_assets.sources.vin_store import VinOfflineStore
from tests.campaigns.small_world import ROWS, SEEDS, RunEnd, SmallWorld, made_up_rows, replace_file

REFUSALS = tuple(name for name, kind in vars(errors).items() if isinstance(kind, type))
"""Beginnings of the messages of runs that were refused; any other failure is a fault of the program."""

INPUTS = [f"shards/shard-{row:06d}" for row in range(ROWS[0])] + [
    f"meshes/scene_ply_home-{row:06d}.ply" for row in range(ROWS[0])
]
"""What may disappear from the source: the rows themselves, and the meshes of their scenes."""

DAMAGES = ("flipped", "cut", "gone", "unmarked", "sealed again")
"""What may happen to a shard: a bit, half a file, a whole file, its success marker, a bit with the seal made anew."""

Rows = dict[str, frozenset[str]]
"""Split -> sample keys of the source rows that readers find there."""


@dataclass
class SeenVersion:
    """A version as it was when it appeared."""

    rows: Rows
    seal: str
    stamp: str


@dataclass(frozen=True)
class OpenDataset:
    """A reader that opened a version's split at some time, and what it must find there whenever it reads."""

    version: str
    reader: RolloutZarrStoreReader
    content: str


class CampaignMachine(RuleBasedStateMachine):
    """What may be done to a campaign, and what must hold after each step."""

    def __init__(self, template: SmallWorld) -> None:
        super().__init__()
        self.template = template
        self.broken = False
        self.versions: dict[str, SeenVersion] = {}
        self.current: str | None = None
        self.folders: dict[int, str] = {}
        self.rows: set[str] = set()
        self.let_go: set[str] = set()
        self.lines: set[bytes] = set()
        self.lost: list[str] = []
        self.readers: list[OpenDataset] = []
        self.promotions: Counter[tuple[int, str]] = Counter()
        self.outside_steps = 0
        self.nothing_changed_since_failure = False
        self.backfilling = False

    @initialize(kept=st.sampled_from(["promoted", "validated", "planned"]))
    def copy(self, kept: str) -> None:
        """Everything is validated, and promoted or not yet."""
        self.world = self.template.copy_of(kept)
        with self.step(moves=True):
            pass

    # The operator

    @rule()
    def plan(self) -> None:
        with self.step(), refusing():
            write_rollout_shard_manifest_from_config(self.world.config)

    @rule(allow_fewer=st.booleans())
    def build(self, allow_fewer: bool) -> None:
        with self.step(allow_fewer=allow_fewer), refusing():
            run_campaign(self.world.config, allow_fewer=allow_fewer)

    @rule(allow_fewer=st.booleans())
    def promote(self, allow_fewer: bool) -> None:
        with self.step(allow_fewer=allow_fewer), refusing():
            promote_rollout_campaign(self.world.config, allow_fewer=allow_fewer)

    @precondition(lambda self: len(self.versions) > 1)
    @rule()
    def roll_back(self) -> None:
        with self.step(moves=True), refusing():
            rollback_promotion(self.world.config)

    @precondition(lambda self: read_pin(self.world.layout) is not None)
    @rule()
    def unpin(self) -> None:
        with self.step(), refusing():
            unpin_promotion(self.world.config)

    @rule()
    def clean(self) -> None:
        with self.step():
            found = clean_campaign(self.world.config).found
        may_go = {path for part in found for path in part.paths} | {
            self.world.layout.versions / part.name for part in found if part.kind == "version"
        }
        with self.step(may_go=may_go):
            clean_campaign(self.world.config, apply=True)
        self.readers = [reader for reader in self.readers if reader.version in self.versions]

    @rule()
    def edit(self) -> None:
        with self.step():
            text = self.world.file.read_text()
            self.world.edit(*(SEEDS if SEEDS[0] in text else SEEDS[::-1]))

    # What happens to files

    @precondition(lambda self: not self.lost)
    @rule()
    def append(self) -> None:
        with self.step():
            self.world.append_snippet()

    @rule(what=st.sampled_from(INPUTS))
    def lose_input(self, what: str) -> None:
        if what not in self.lost:
            with self.step():
                (path := self.world.source / what).rename(path.with_name(f".away-{path.name}"))
            self.lost.append(what)

    @precondition(lambda self: self.lost)
    @rule()
    def restore_inputs(self) -> None:
        with self.step():
            self._restore_inputs()

    def _restore_inputs(self) -> None:
        for what in self.lost:
            (path := self.world.source / what).with_name(f".away-{path.name}").rename(path)
        self.lost = []

    @rule(place=st.integers(0, 2), how=st.sampled_from(DAMAGES), looked_at=st.booleans())
    def damage(self, place: int, how: str, looked_at: bool) -> None:
        """Damage a finished shard; if it is looked at, before anyone repairs it, by the sensor of promotion."""
        shards = sorted(path for path in self.world.layout.shards.glob("shard-*") if owner_if_finished(path))
        if shards:
            with self.step():
                _damage(shards[place % len(shards)], how)
        if looked_at:
            self._tick_for_promotion()

    @rule()
    def cut_plan(self) -> None:
        """The plan loses its last line, as a copy of a file may."""
        lines = self.world.layout.plan.read_bytes().splitlines(keepends=True)
        if len(lines) > 1:
            self.lines.discard(lines[-1].rstrip())
            with self.step():
                replace_file(self.world.layout.plan, b"".join(lines[:-1]))

    # Readers

    @precondition(lambda self: self.current is not None and len(self.readers) < 3)
    @rule()
    def open_dataset(self) -> None:
        split = min(self.versions[self.current or ""].rows)
        place = self.world.layout.promoted.resolve() / split
        content = _content(RolloutZarrStoreReader(place))
        self.readers.append(OpenDataset(place.parent.name, RolloutZarrStoreReader(place), content))

    @precondition(lambda self: self.readers)
    @rule()
    def read_open_datasets(self) -> None:
        for opened in self.readers:
            self.require(_content(opened.reader) == opened.content, f"{opened.version} changed under an open dataset")

    # Dagster

    @rule()
    def tick_for_shards(self) -> None:
        with self.step(dagster=True):
            self.judge(self.world.tick("new_snippets")[0])

    @rule()
    def tick_for_promotion(self) -> None:
        self._tick_for_promotion()

    def _tick_for_promotion(self) -> None:
        due = self.promotion_is_due()
        with self.step(dagster=True):
            ends, reason = self.world.tick("promotion")
            self.judge(ends)
        promoted = any(end.job == names.PROMOTE for end in ends)
        waits = due and not promoted and not self.nothing_changed_since_failure
        self.require(not waits, f"promotion is due, and the sensor waits: {reason}")
        if promoted:
            self.nothing_changed_since_failure = not all(end.ok for end in ends)

    @rule(place=st.integers(0, 2), allow_fewer=st.booleans())
    def materialize_shard(self, place: int, allow_fewer: bool) -> None:
        shards = sorted(self.world.instance.get_dynamic_partitions(self.world.keys.partitions_name))
        self._materialize(shards[place % len(shards)], allow_fewer=allow_fewer)

    def _materialize(self, shard_id: str, tags: dict[str, str] | None = None, *, allow_fewer: bool = False) -> bool:
        with self.step(dagster=True, allow_fewer=allow_fewer):
            self.judge([end := self.world.run(names.SHARD, shard_id, tags, allow_fewer=allow_fewer)])
        return end.ok

    @rule(look_after=st.integers(0, 3))
    def backfill_everything(self, look_after: int) -> None:
        """*Materialize all*, as the daemon launches it, with the promotion sensor looking at some moment meanwhile."""
        world = self.world
        everything = {world.keys.key(asset) for asset in (names.ROLLOUT_SHARD_PLAN, *names.SHARD_CHAIN)}
        with self.step(dagster=True):
            backfill = self._begin_backfill([*everything, world.keys.key(names.ROLLOUTS_ZARR)])
            tags = {names.BACKFILL_TAG: backfill.backfill_id}
            self.judge([end := world.run(names.PLAN, None, tags)])
        if end.ok:
            shards = sorted(world.instance.get_dynamic_partitions(world.keys.partitions_name))
            built = [self._materialize(shard_id, tags) for shard_id in shards if self._look(shard_id, look_after)]
            if all(built):
                if look_after == len(shards):
                    self._tick_for_promotion()
                with self.step(dagster=True):
                    self.judge([world.run(names.PROMOTE, None, tags)])
        world.instance.update_backfill(backfill.with_status(BulkActionStatus.COMPLETED))
        self.backfilling = False

    def _look(self, shard_id: str, look_after: int) -> bool:
        if shard_id.endswith(f"{look_after:06d}"):
            self._tick_for_promotion()
        return True

    def _begin_backfill(self, chosen: list[dg.AssetKey]) -> PartitionBackfill:
        repository = self.world.definitions.get_repository_def()
        backfill = PartitionBackfill.from_asset_partitions(
            backfill_id=f"backfill-{next(_NUMBERS)}",
            asset_graph=repository.asset_graph,
            partition_names=None,
            asset_selection=chosen,
            backfill_timestamp=0.0,
            tags={},
            dynamic_partitions_store=self.world.instance,
            all_partitions=True,
            title=None,
            description=None,
            run_config=None,
        )
        self.world.instance.add_backfill(backfill)
        self.backfilling = True
        self.outside_steps += 1  # each backfill is a wish of the operator
        return backfill

    # What must hold

    def require(self, holds: object, what: str) -> None:
        self.broken |= not holds
        assert holds, what

    def judge(self, ends: Collection[RunEnd]) -> None:
        """A run may be refused, and may not fail in any other way. A promotion is made once."""
        for end in ends:
            self.require(end.ok or end.error.startswith(REFUSALS), f"{end.job} {end.partition}: {end.error}")
            if end.ok and end.job == names.SHARD:
                self.nothing_changed_since_failure = False
            if end.ok and end.job == names.PROMOTE:
                content = materialized_version(self.world.instance, self.world.keys.key(names.ROLLOUTS_ZARR))
                self.promotions[self.outside_steps, str(content)] += 1
        twice = [content for (_, content), count in self.promotions.items() if count > 1]
        self.require(not twice, f"{', '.join(twice)} was promoted more than once")

    @contextmanager
    def step(
        self,
        *,
        moves: bool = False,
        allow_fewer: bool = False,
        dagster: bool = False,
        may_go: Collection[Path] = (),
    ) -> Iterator[None]:
        """One step, after which everything is looked at.

        ``moves``: it may let readers have an earlier version. ``may_go`` is what it may remove.
        """
        inodes = {path.stat().st_ino for path in may_go if path.exists()}
        self.outside_steps += not dagster
        try:
            yield
        except Exception:
            self.broken = True
            raise
        self._no_shard_is_removed(inodes)
        self._no_shard_loses_rows(allow_fewer)
        self._no_planned_line_is_lost(may_go)
        appeared = self._versions_are_what_they_were({path.name for path in may_go})
        self._readers_lose_no_row(moves, allow_fewer)
        for version in appeared:
            self._published_rows_are_in_validated_shards(version, dagster)

    def _no_shard_is_removed(self, may_go: Collection[int]) -> None:
        layout = self.world.layout
        places = [path for folder in (layout.shards, layout.set_aside_dir) for path in folder.glob("shard-*")]
        present = {path.stat().st_ino: path for path in places if path.is_dir()}
        gone = {name for inode, name in self.folders.items() if inode not in present and inode not in may_go}
        self.require(not gone, f"{', '.join(sorted(gone))} is gone, and was not set aside")
        finished = {inode: path.name for inode, path in present.items() if owner_if_finished(path) is not None}
        self.folders = {inode: name for inode, name in self.folders.items() if inode in present} | finished

    def _no_shard_loses_rows(self, allow_fewer: bool) -> None:
        """The planned shards that are finished have records of every row that any of them had records of before."""
        owners = [owner_if_finished(path) for path in sorted(self.world.layout.shards.glob("shard-*"))]
        rows = {row.sample_key: row.records for owner in owners if owner is not None for row in owner.rows}
        lacking = {key for key, records in rows.items() if not records} & self.rows
        self.let_go |= lacking if allow_fewer else set()
        lost = lacking - self.let_go
        self.require(not lost, f"a shard was built again without {', '.join(sorted(lost))}")
        self.rows |= {key for key, records in rows.items() if records}
        self.let_go -= {key for key, records in rows.items() if records}

    def _no_planned_line_is_lost(self, may_go: Collection[Path]) -> None:
        layout = self.world.layout
        self.lines -= {line for path in may_go if path.suffix == ".jsonl" for line in self.replaced.get(path, ())}
        self.replaced = {path: path.read_bytes().splitlines() for path in layout.replaced_plans.glob("*.jsonl")}
        present = set(layout.plan.read_bytes().splitlines()).union(*self.replaced.values())
        self.require(self.lines <= present, f"{len(self.lines - present)} planned line(s) are gone")
        self.lines = present

    def _versions_are_what_they_were(self, may_go: Collection[str]) -> list[PromotedVersion]:
        present = {version.name: version for version in promoted_versions(self.world.config)}
        gone = self.versions.keys() - present.keys() - set(may_go)
        self.require(not gone, f"{', '.join(sorted(gone))} is gone")
        self.versions = {name: seen for name, seen in self.versions.items() if name in present}
        for name, seen in self.versions.items():
            if (stamp := stamp_tree(present[name].path)) != seen.stamp:
                self.require(seal_tree(present[name].path).sha256 == seen.seal, f"{name} was altered")
                seen.stamp = stamp
        appeared = [version for name, version in present.items() if name not in self.versions]
        for version in appeared:
            for child in version.children:
                found = validate_rollout_zarr_store(child, deep=True, profile="own").findings
                self.require(not found, f"{version.name} {found}")
            rows = {Path(child).name: _sample_keys(child) for child in version.children}
            path = version.path
            self.versions[version.name] = SeenVersion(rows, seal_tree(path).sha256, stamp_tree(path))
        return appeared

    def _readers_lose_no_row(self, moves: bool, allow_fewer: bool) -> None:
        link = self.world.layout.promoted
        before, self.current = self.current, link.readlink().name if link.is_symlink() else None
        if self.current is None:
            self.require(before is None, "readers get nothing")
            return
        self.require(self.current in self.versions, f"readers are sent to {self.current}, which is not whole")
        if before in self.versions and not moves:
            had, have = self.versions[before].rows, self.versions[self.current].rows
            for split, rows in had.items():
                lacking = rows - have.get(split, frozenset())
                self.let_go |= lacking if allow_fewer else set()
                lost = ", ".join(sorted(lacking - self.let_go))
                self.require(not lost, f"{self.current} {split} lacks {lost}, which {before} has")

    def _published_rows_are_in_validated_shards(self, version: PromotedVersion, dagster: bool) -> None:
        if self.outside_steps == 1:
            return  # the template made it
        validated = validated_versions(self.world.instance, self.world.keys)
        entries = {entry.shard_id: entry for entry in read_rollout_shard_manifest(self.world.config)}
        for shard in itertools.chain(*version.record.splits.values()):
            place = self.world.layout.shard(shard.shard_id)
            problems = shard_problems(place, entries[shard.shard_id], None, deep=True)
            self.require(not problems, f"{version.name} has rows of {shard.shard_id}: {problems}")
            owner, made_from = owner_if_finished(place), (shard.entry_sha256, shard.content_sha256)
            holds = owner is not None and (owner.entry_sha256, owner.content_sha256) == made_from
            self.require(holds, f"{version.name} has other rows than {shard.shard_id}")
            holds = not dagster or validated.get(shard.shard_id) == validated_version(*made_from)
            self.require(holds, f"{version.name} has rows of {shard.shard_id}, which was never validated")

    def promotion_is_due(self) -> bool:
        """Whether all shards are validated as planned and sound, readers have something else, and nothing promotes."""
        world = self.world
        planned = read_rollout_shard_manifest(world.config)
        if self.backfilling or read_pin(world.layout) is not None:
            return False
        if planned.config_changes(world.config) or self._unsound(world):
            return False
        current = next((version for version in promoted_versions(world.config) if version.is_current), None)
        wanted = {(shard.shard_id, shard.sha256) for shard in planned}
        found = () if current is None else itertools.chain(*current.record.splits.values())
        return wanted != {(shard.shard_id, shard.entry_sha256) for shard in found}

    def _unsound(self, world: SmallWorld, source: VinOfflineStore | None = None) -> list[str]:
        """Planned shards that are damaged, not built as planned from a source, or not validated as they are."""
        validated, unsound = validated_versions(world.instance, world.keys), []
        for entry in read_rollout_shard_manifest(world.config):
            place = world.layout.shard(entry.shard_id)
            owner = None if shard_problems(place, entry, source, deep=True) else owner_if_finished(place)
            if owner is None or validated.get(entry.shard_id) != validated_version(entry.sha256, owner.content_sha256):
                unsound.append(entry.shard_id)
        return unsound

    def teardown(self) -> None:
        """The operator repairs everything as the pages say, and the sensor promotes it at its next look."""
        if self.broken or not hasattr(self, "world"):
            return
        with self.step():
            self._restore_inputs()
            unpin_promotion(self.world.config)
        with self.step(dagster=True):
            self.judge([end := self.world.run(names.PLAN)])
        self.require(end.ok, f"all inputs are there, and planning is refused: {end.error}")
        for shard_id in self._unsound(self.world, open_source(self.world.config)):
            self.require(self._materialize(shard_id), f"all inputs are there, and {shard_id} is refused")
        self._tick_for_promotion()
        self.require(not self.promotion_is_due(), "everything is repaired, and is not promoted")
        rows = self.versions[self.current or ""].rows
        planned = read_rollout_shard_manifest(self.world.config)
        missing = {row.sample_key for shard in planned for row in shard.rows} - frozenset[str]().union(*rows.values())
        self.require(not missing, f"everything is repaired, and readers lack {', '.join(sorted(missing))}")
        self.read_open_datasets()

    replaced: dict[Path, list[bytes]] = {}  # noqa: RUF012 - replaced, never changed


_NUMBERS = itertools.count()


@contextmanager
def refusing() -> Iterator[None]:
    """What an actor does may be refused."""
    with suppress(RolloutAssetsError):
        yield


def _damage(shard: Path, how: str) -> None:
    chunk = shard / STORE_NAME / "candidates/target_rri/c/0"
    if how == "unmarked":
        (shard / "_SUCCESS.json").unlink()
    elif how == "gone":
        chunk.unlink(missing_ok=True)
    elif chunk.exists():
        data = chunk.read_bytes()
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        replace_file(chunk, data[:middle] if how == "cut" else flipped)
    if how == "sealed again" and (owner := owner_if_finished(shard)) is not None and owner.store is not None:
        seal = owner.store.model_copy(update={"files_sha256": seal_tree(shard / STORE_NAME).sha256})
        publish_json(shard / "_owner.json", owner.model_copy(update={"store": seal}).model_dump(mode="json"))
        write_success(shard, shard.name)


def _sample_keys(child: object) -> frozenset[str]:
    table = RolloutZarrStoreReader(child).table("sources", columns=("sample_key_id",), decode=True)
    return frozenset(table["sample_key_id"].to_list())


def _content(reader: RolloutZarrStoreReader) -> str:
    tables = (reader.table(name, decode=True) for name in ("sources", "candidates"))
    return hashlib.sha256("".join(table.write_json() for table in tables).encode()).hexdigest()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallWorld]:
    """A world with two validated shards, kept before and after their promotion."""
    folder = tmp_path_factory.mktemp("machine")
    with made_up_rows(folder / "stores"):
        world = SmallWorld(folder)
        world.make()
        for name, sensor in (("planned", "new_snippets"), ("validated", "new_snippets"), ("promoted", "promotion")):
            ends, reason = world.tick(sensor)
            assert ends and all(end.ok for end in ends), reason
            world.keep(name)
        yield world


def explore(template: SmallWorld, examples: int, steps: int, **options: object) -> None:
    how = settings(
        max_examples=examples,
        stateful_step_count=steps,
        suppress_health_check=list(HealthCheck),
        **options,
    )
    run_state_machine_as_test(lambda: CampaignMachine(template), settings=how)


def a_mesh_is_lost(machine: CampaignMachine) -> None:
    machine.copy("promoted")
    machine.lose_input("meshes/scene_ply_home-000003.ply")
    machine.build(False)
    machine.materialize_shard(1, False)
    machine.promote(False)


def a_damaged_shard_is_repaired(machine: CampaignMachine) -> None:
    machine.copy("validated")
    machine.damage(0, "flipped", True)


def everything_is_materialized(machine: CampaignMachine) -> None:
    machine.copy("promoted")
    machine.append()
    machine.backfill_everything(look_after=3)


def a_plan_is_cut(machine: CampaignMachine) -> None:
    machine.copy("promoted")
    machine.cut_plan()
    machine.promote(False)


STORIES = [a_mesh_is_lost, a_damaged_shard_is_repaired, everything_is_materialized, a_plan_is_cut]


@pytest.mark.parametrize("story", STORIES)
def test_in_these_orders_of_steps_readers_keep_what_they_have(
    template: SmallWorld, story: Callable[[CampaignMachine], None]
) -> None:
    story(machine := CampaignMachine(template))
    machine.teardown()


@pytest.mark.ci
def test_in_any_order_of_steps_readers_keep_what_they_have(template: SmallWorld) -> None:
    explore(template, 4, 8, phases=[Phase.generate])


@pytest.mark.slow
def test_in_many_orders_of_many_steps_readers_keep_what_they_have(template: SmallWorld) -> None:
    explore(template, 100, 20)
