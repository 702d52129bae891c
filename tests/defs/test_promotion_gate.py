"""The gate before promotion: nothing unvalidated passes, and bytes that this process examined are not read again."""

from pathlib import Path

import pytest

from rollout_assets.campaigns.integrity import examine_shard
from rollout_assets.campaigns.plan import read_rollout_shard_manifest
from rollout_assets.campaigns.promotion_gate import refuse_unvalidated, version_on_disk
from rollout_assets.errors import PromotionRefused
from tests.support.refusals import refused


def validated(desk) -> dict[str, str]:
    """Every shard, as if it had been validated as it is now."""
    return {entry.shard_id: version_on_disk(desk.layout, entry) for entry in read_rollout_shard_manifest(desk.config)}


def bytes_read() -> int:
    """Bytes that this process has read from files, by the kernel's count."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def test_bytes_are_read_once_per_process_and_again_after_a_change(made_desk):
    entries = read_rollout_shard_manifest(made_desk.config)
    stores = [made_desk.layout.shard(entry.shard_id) / "rollouts.zarr" for entry in entries]
    size = sum(path.stat().st_size for store in stores for path in store.rglob("*") if path.is_file())
    versions = validated(made_desk)
    before = bytes_read()
    for entry in entries:
        assert examine_shard(made_desk.config, entry).all_findings() == ()
    examined = bytes_read()
    refuse_unvalidated(made_desk.config, versions)
    assert examined - before > size > 2 * (bytes_read() - examined)

    chunk = next(path for path in sorted(stores[1].rglob("c/0")) if path.is_file())
    chunk.write_bytes(chunk.read_bytes()[::-1])
    with refused(PromotionRefused, "shard-000001: ", "rollouts.zarr"):
        refuse_unvalidated(made_desk.config, validated(made_desk))


def test_a_shard_that_was_not_validated_or_is_another_one_is_refused(made_desk):
    versions = validated(made_desk)
    with pytest.raises(PromotionRefused) as refused:
        refuse_unvalidated(made_desk.config, {"shard-000000": "another version"})
    assert [f"{shard}: not validated" in str(refused.value) for shard in versions] == [True, True]
