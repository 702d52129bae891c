"""`rollout-assets cluster check`: every thing that must hold before a backfill, and what is said when it does not."""

import json
import os
import sys
from pathlib import Path

import pytest

from rollout_assets.cluster import check, node
from rollout_assets.cluster.check import check_cluster, compare, slot_problems
from rollout_assets.cluster.node import Answer, NodeReport, Question, examine_node, judge_clock, token_in_output
from rollout_assets.cluster.ray_nodes import RayAnswers, count_places
from rollout_assets.cluster.settings import ClusterSettings, database_url, read_settings
from rollout_assets.errors import ConfigError
from tests.defs.campaigns import edit, write_campaign
from tests.support.commands import call
from tests.support.refusals import assert_names, refused

TEMPLATE = Path(__file__).resolve().parents[2] / "infra" / "cluster" / "ray" / "dagster.yaml"
UNREACHABLE = "postgresql+psycopg2://user:secret@127.0.0.1:1/dagster"


@pytest.fixture
def campaign(small_store, tmp_path) -> Path:
    return write_campaign(tmp_path, small_store)


@pytest.fixture(autouse=True)
def command_on_the_path(monkeypatch):
    """As in an activated environment."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def examine(campaign: Path, token: str = "", **more) -> dict[str, Answer]:
    if token:
        return dict(examine_node(Question(str(campaign), token, **more)).answers)
    with token_in_output(str(campaign)) as token:
        return dict(examine_node(Question(str(campaign), token, **more)).answers)


def wrong(answers: dict[str, Answer]) -> dict[str, str]:
    return {name: answer.problem for name, answer in answers.items() if answer.problem}


def test_a_machine_that_is_ready_has_no_problem(campaign, tmp_path, monkeypatch):
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    done = call("cluster", "check", "-c", str(campaign))
    assert done.code == 0, done.out + done.err
    assert_names(done.out, "this machine", "ready: 1 machine")
    assert not (tmp_path / "tiny" / node.PASSED_ON).exists()
    facts = json.loads(call("cluster", "check", "-c", str(campaign), "--json").out)
    assert facts["problems"] == [] and set(facts["reports"][0]["answers"]) == set(check.THINGS)


def test_a_problem_is_one_line_and_exit_code_1(campaign, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    done = call("cluster", "check", "-c", str(campaign))
    assert done.code == 1
    assert_names(done.out, "this machine: dagster: ", "'dagster'")
    assert_names(done.out.splitlines()[-1], "not ready", "1 problem", "1 machine")


def test_a_campaign_that_is_not_there(tmp_path):
    answers = examine(tmp_path / "nowhere.toml", token="some")
    assert_names(answers["campaign"].problem, tmp_path / "nowhere.toml")
    assert wrong(answers).keys() == {"campaign", "source", "output", "device"}


def test_a_source_that_is_not_there(campaign):
    edit(campaign, 'store_dir = "', 'store_dir = "/nowhere')
    assert_names(wrong(examine(campaign))["source"], "/nowhere")


def test_an_output_that_another_machine_does_not_share(campaign):
    """The folder of another machine has the same path and other files."""
    found = wrong(examine(campaign, token="written elsewhere"))
    assert found.keys() == {"output"}
    assert_names(found["output"], "shared folder", "URL")


def test_an_output_that_cannot_be_written(campaign, tmp_path, monkeypatch):
    def refuse(*_arguments: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "tiny"))

    with token_in_output(str(campaign)) as token:
        monkeypatch.setattr(Path, "write_bytes", refuse)  # root may write everywhere
        answers = examine_node(Question(str(campaign), token)).answers
        monkeypatch.undo()
    assert answers["output"].problem == f"Permission denied: {tmp_path / 'tiny'}"


def test_a_device_that_is_not_there(campaign):
    assert_names(wrong(examine(campaign, num_gpus=1.0))["device"], "GPU")
    edit(campaign, 'device = "cpu"', 'device = "cuda:97"')
    assert_names(wrong(examine(campaign))["device"], "'cuda:97'")


@pytest.mark.parametrize(
    ("database", "names"),
    [
        ({"postgres_url": {"env": "NO_SUCH_VARIABLE"}}, ["NO_SUCH_VARIABLE"]),
        ({"postgres_url": "postgresql://user:secret@127.0.0.1:1/d"}, ["postgresql+psycopg2://"]),
        ({"postgres_url": UNREACHABLE}, ["reachable"]),
        ({"postgres_db": {"hostname": "h"}}, ["username, password, db_name"]),
    ],
)
def test_a_database_that_cannot_be_reached(campaign, database, names):
    answers = examine(campaign, database=database)
    assert "secret" not in str(answers)
    assert_names(answers["database"].problem, *names)


def test_a_clock_that_is_wrong():
    for ahead_s in (5.0, -5.0):
        assert_names(judge_clock(ahead_s, 0.1).problem, "NTP")
    assert judge_clock(1.0, 0.1).problem == judge_clock(5.0, 4.0).problem == ""


@pytest.mark.parametrize("thing", ["version", "campaign", "source"])
def test_a_node_with_another(thing):
    here = NodeReport("here", {name: Answer("ours") for name in check.SAME})
    other = NodeReport("there", {**here.answers, thing: Answer("theirs")})
    ((name, problem),) = compare(other, here).problems()
    assert name == thing and problem.startswith("theirs") and problem.endswith("ours")
    assert list(compare(here, here).problems()) == []


def test_more_runs_than_places_and_storage_that_cannot_be_shared():
    settings = ClusterSettings("ray", num_cpus=1.0, slots=4, pool_limit=2)
    answers = RayAnswers((NodeReport("a", {}),), places=3)
    assert slot_problems(settings, answers).keys() == {"pool", "database", "slots"}
    assert_names(slot_problems(settings, answers)["slots"], "4 runs", "3")
    assert "nodes" in slot_problems(settings, RayAnswers((), 0))
    unset = ClusterSettings("ray", database={"postgres_url": "x"})
    assert slot_problems(unset, answers)["slots"]
    fine = ClusterSettings("ray", slots=3, pool_limit=3, database={"postgres_url": "x"})
    assert slot_problems(fine, answers) == {}


def test_places_of_nodes():
    nodes = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 1.0}]
    assert count_places(nodes, 1.0, 0.0) == 9
    assert count_places(nodes, 1.0, 0.5) == 4
    assert count_places(nodes, 6.0, 0.5) == 1


def test_the_template_has_one_number_of_slots(monkeypatch):
    monkeypatch.setenv("RAY_JOB_ADDRESS", "http://head:8265")
    monkeypatch.setenv("DAGSTER_POSTGRES_URL", UNREACHABLE)
    monkeypatch.setenv("ROLLOUT_ASSETS_CAMPAIGNS", "/campaigns/a.toml")
    settings = read_settings(TEMPLATE.parent)
    assert (settings.launcher, settings.address) == ("ray", "http://head:8265")
    assert settings.slots == settings.pool_limit == 2 and slot_problems(settings, None) == {}
    assert TEMPLATE.read_text().count("&slots") == TEMPLATE.read_text().count("*slots") == 1
    assert settings.variables() == {"ROLLOUT_ASSETS_CAMPAIGNS": "/campaigns/a.toml"}
    assert settings.database is not None and database_url(settings.database) == UNREACHABLE


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a: [", ["YAML"]),
        ("- a", ["table", "list"]),
        ("run_launcher: {class: RayRunLauncher, config: {address: x}}", ["config: ray:"]),
        ("run_launcher: {class: RayRunLauncher, config: {ray: {address: {env: NO_SUCH}}}}", ["NO_SUCH"]),
    ],
)
def test_an_instance_that_cannot_be_read_is_refused(tmp_path, text, names):
    (tmp_path / "dagster.yaml").write_text(text)
    with refused(ConfigError, *names):
        read_settings(tmp_path)


def test_the_database_of_an_instance_that_the_chart_has_written(tmp_path, monkeypatch):
    monkeypatch.setenv("DAGSTER_PG_PASSWORD", "a/b")
    place = "{hostname: db, username: dagster, password: {env: DAGSTER_PG_PASSWORD}, db_name: runs, port: 5433}"
    launcher = "run_launcher: {module: dagster_k8s, class: K8sRunLauncher}"
    storage = f"run_storage: {{class: PostgresRunStorage, config: {{postgres_db: {place}}}}}"
    (tmp_path / "dagster.yaml").write_text(f"{launcher}\n{storage}\n")
    settings = read_settings(tmp_path)
    assert settings.launcher == "kubernetes" and settings.database is not None
    assert database_url(settings.database) == "postgresql+psycopg2://dagster:a%2Fb@db:5433/runs"


def test_a_cluster_that_does_not_answer_is_one_line(campaign, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="pip install 'rollout-assets[cluster]'")
    (tmp_path / "dagster.yaml").write_text(TEMPLATE.read_text())
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.setenv("RAY_JOB_ADDRESS", "http://127.0.0.1:1")
    done = call("cluster", "check", "-c", str(campaign))
    assert done.code == 2
    assert_names(done.err, "Ray", "http://127.0.0.1:1")


def test_nothing_is_left_in_the_output(campaign):
    result = check_cluster(campaign, None)
    assert result.ok and not list((campaign.parent / "tiny").rglob("_cluster_check*"))
