"""The home of an instance: quiet when new, otherwise the user's; a session keeps its shared databases open."""

import dagster as dg

from rollout_assets.defs.home import SHARED_DATABASES, databases_kept_open, open_instance, prepare_home


@dg.job
def nothing():
    @dg.op
    def step():
        return None

    step()


def logs(home):
    """The write-ahead logs that SQLite has not copied into their databases yet."""
    return [name for name in SHARED_DATABASES if (home / f"{name}-wal").exists()]


def test_a_new_home_sends_nothing_anywhere_and_an_old_one_is_left_alone(tmp_path):
    assert "telemetry:\n  enabled: false" in (prepare_home(tmp_path / "new") / "dagster.yaml").read_text()
    (tmp_path / "dagster.yaml").write_text("# mine\n")
    assert (prepare_home(tmp_path) / "dagster.yaml").read_text() == "# mine\n"


def test_a_session_keeps_write_ahead_logs_and_leaves_none(tmp_path):
    with open_instance(tmp_path) as instance:
        assert nothing.execute_in_process(instance=instance).success
        assert logs(tmp_path) == []
        with databases_kept_open(tmp_path):
            run = nothing.execute_in_process(instance=instance).run_id
            assert logs(tmp_path) == list(SHARED_DATABASES)
            with open_instance(tmp_path) as other:
                assert other.get_run_by_id(run).is_success
        assert logs(tmp_path) == []
        assert instance.get_run_by_id(run).is_success


def test_a_home_with_a_storage_of_its_own_is_opened_as_it_says_and_has_nothing_to_keep_open(tmp_path):
    (tmp_path / "dagster.yaml").write_text(f"storage:\n  sqlite:\n    base_dir: {tmp_path / 'elsewhere'}\n")
    with open_instance(tmp_path) as instance, databases_kept_open(tmp_path):
        run = nothing.execute_in_process(instance=instance).run_id
    assert (tmp_path / "elsewhere" / "history" / "runs" / f"{run}.db").exists()
