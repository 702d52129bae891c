"""A mesh that is missing, as when a disk is unmounted: its shard's run is refused, and nothing that exists changes."""

import shutil

from rollout_assets.campaigns.versions import current_name, current_version
from rollout_assets.defs.records import described_version
from rollout_assets.sources.vin_store import VinOfflineStore
from tests.defs.looks import Ticker
from tests.support.refusals import assert_names


def tree(folder) -> dict[str, int]:
    """Every file and folder below a folder, with its time."""
    return {str(path.relative_to(folder)): path.lstat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def test_a_missing_mesh_refuses_its_shard_and_promotes_nothing(made_desk):
    runner, layout = made_desk.runner(), made_desk.layout
    scene = VinOfflineStore.open(made_desk.source).row(0).scene_id
    (mesh,) = [path for path in (made_desk.source / "meshes").glob("*.ply") if scene in path.name]
    with runner.instance as instance:
        ticker = Ticker(made_desk, instance)
        rows_key = runner.keys.key("vin_source_rows")
        before, shards, versions = made_desk.content(), tree(layout.shards), tree(layout.versions)
        recorded = instance.get_latest_materialization_event(rows_key)
        away = made_desk.folder / "unmounted.ply"
        mesh.rename(away)

        for look in ("tiny_new_snippets", "tiny_promotion"):
            assert ticker.accept(ticker.sensor(look)) == []
        run = runner.run("shard", "shard-000000")
        assert not run.ok
        assert_names(run.error, "InputMissing", "shard-000000", scene, mesh.parent)
        assert instance.get_latest_materialization_event(rows_key) == recorded, "it refuses before anything is recorded"
        for look in ("tiny_new_snippets", "tiny_promotion"):
            assert ticker.accept(ticker.sensor(look)) == []
        assert (made_desk.content(), tree(layout.shards), tree(layout.versions)) == (before, shards, versions)
        assert current_name(layout) == described_version(instance, runner.keys.key("rollouts_zarr")) == "v000001"

        shutil.move(away, mesh)
        assert runner.run("shard", "shard-000000").ok and made_desk.content() == before
        assert ticker.accept(ticker.sensor("tiny_promotion")) == []
        assert current_version(made_desk.config).number == 1
