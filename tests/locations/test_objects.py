"""Objects below a URL: conditions hold in a race, an endpoint that ignores them is refused, and copies stay current."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollout_assets.errors import ObjectStorageError, ObjectStorageUnavailable
from rollout_assets.locations import objects as objects_module
from rollout_assets.locations.conditions import require_conditional_writes
from rollout_assets.locations.mirror import ObjectMirror
from rollout_assets.locations.objects import ObjectFolder
from rollout_assets.locations.url import ObjectUrl
from rollout_assets.testing.object_storage import environment_of, local_object_storage
from tests.campaigns.kill_campaigns import fake_campaign
from tests.support.refusals import refused
from tests.support.waiting import PATIENCE_S


def test_one_of_many_creators_wins_and_one_of_many_replacers(object_storage):
    folder = ObjectFolder(object_storage.url("race"))
    with ThreadPoolExecutor(8) as threads:
        created = list(threads.map(lambda number: folder.create("one", f"{number}".encode()), range(8)))
        before = folder.read_tagged("one")
        replaced = list(threads.map(lambda number: folder.replace("one", f"new {number}".encode(), before), range(8)))
    assert sum(created) == 1 and created[int(before.data)]
    assert sum(replaced) == 1 and folder.read("one") == f"new {replaced.index(True)}".encode()
    assert not folder.replace("absent", b"x", before)


def test_a_write_whose_answer_was_lost_counts_as_done(object_storage):
    folder = ObjectFolder(object_storage.url("lost"))
    assert folder.create("one", b"mine, attempt 7")
    assert folder.create("one", b"mine, attempt 7")  # as a client repeats it when the answer does not arrive
    assert not folder.create("one", b"another's")


def test_objects_are_read_in_parts_listed_copied_and_removed(object_storage, tmp_path):
    folder = ObjectFolder(object_storage.url("parts"))
    (tmp_path / "sub").mkdir()
    for number in range(3):
        (tmp_path / "sub" / f"{number}").write_bytes(bytes([number]) * 10)
    folder.upload(tmp_path, [f"sub/{number}" for number in range(3)], "all")
    assert [(fact.key, fact.size) for fact in folder.listing("all")] == [(f"all/sub/{n}", 10) for n in range(3)]
    assert folder.read_part("all/sub/2", 4, 3) == b"\2\2\2"
    assert folder.read_beginning("all/sub/1", 4) == (b"\1" * 4, 10)
    assert folder.read_beginning("all/sub/1", 400) == (b"\1" * 10, 10)
    folder.copy("all/sub/1", "other/1")
    assert folder.read("other/1") == b"\1" * 10 and folder.folder_names("all") == ["sub"]
    folder.remove(["all/sub/0", "not there"])
    assert [fact.key for fact in folder.listing("all")] == ["all/sub/1", "all/sub/2"]
    with refused(FileNotFoundError, "s3://rollouts/parts/all/sub/0"):
        folder.read("all/sub/0")


@pytest.mark.ci
def test_more_than_a_page_is_listed(tmp_path, monkeypatch):
    """A server whose pages hold three objects, because a thousand take seconds to write."""
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")
    monkeypatch.setattr(objects_module, "LISTED_AT_ONCE", 3)
    with local_object_storage(tmp_path) as storage, environment_of(storage, tmp_path / "cache"):
        folder = ObjectFolder(storage.url("many"))
        folder.at_once(lambda number: folder.put(f"all/{number}", b""), range(8))
        with storage.counted() as requests:
            assert [fact.key for fact in folder.listing("all")] == [f"all/{number}" for number in range(8)]
    assert requests == {"list": 3} and folder.requests["list"] == 3


def test_a_storage_that_keeps_conditions_is_probed_once(object_storage):
    folder = ObjectFolder(object_storage.url("probed"))
    require_conditional_writes(folder)
    assert list(folder.listing()) == []
    with object_storage.counted() as requests:
        require_conditional_writes(folder)
    assert requests == {}


def test_a_storage_that_ignores_conditions_is_refused(tmp_path):
    with local_object_storage(tmp_path, conditions=False) as storage, environment_of(storage, tmp_path / "cache"):
        with refused(ObjectStorageError, "s3://rollouts/careless", "If-None-Match"):
            require_conditional_writes(ObjectFolder(storage.url("careless")))
        campaign = fake_campaign(storage.url("careless"))
        with refused(ObjectStorageError, "s3://rollouts/careless", "If-None-Match"):
            campaign.plan()
        assert [path for method, path in storage.requests() if method == "PUT" and "plan" in path] == []


def test_no_bucket_and_no_server_are_clear_errors(object_storage, monkeypatch):
    with refused(ObjectStorageError, "s3://nowhere/a"):
        ObjectFolder(ObjectUrl("s3://nowhere/a")).read("b")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setitem(objects_module._RETRIES, "max_retries", 0)
    with refused(ObjectStorageUnavailable, "s3://rollouts/x/b"):
        ObjectFolder(ObjectUrl("s3://rollouts/x")).read("b")


def test_copies_follow_the_objects(object_storage):
    folder = ObjectFolder(object_storage.url("mirrored"))
    mirror = ObjectMirror(folder.url)
    folder.put("shard/a", b"1")
    folder.put("shard/b", b"1")
    assert (mirror.folder("shard") / "a").read_bytes() == b"1"
    with object_storage.counted() as requests:
        mirror.folder("shard")
        assert mirror.file("absent") is None
    assert requests == {"list": 1, "get": 1}
    folder.put("shard/a", b"2")
    folder.remove(["shard/b"])
    copied = mirror.folder("shard")
    assert (copied / "a").read_bytes() == b"2" and not (copied / "b").exists()
    assert mirror.file("shard/a").read_bytes() == b"2"
    folder.put("shard/a", b"3")
    assert mirror.file("shard/a").read_bytes() == b"3"


def _read_forked(url, queue):
    try:
        ObjectFolder(url).read("a")
    except ObjectStorageError as error:
        queue.put(str(error))


def test_a_forked_process_is_refused_with_the_way_out(object_storage):
    folder = ObjectFolder(object_storage.url("forked"))
    folder.put("a", b"1")
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_read_forked, args=(folder.url, queue))
    child.start()
    assert "multiprocessing_context='forkserver'" in queue.get(timeout=PATIENCE_S)
    child.join()
