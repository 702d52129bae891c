"""Is a cluster ready for a backfill? Every node is asked, and must find what this machine finds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rollout_assets.cluster.node import Answer, NodeReport, Question, examine_node, token_in_output
from rollout_assets.cluster.ray_nodes import RayAnswers, ask_ray
from rollout_assets.cluster.settings import ClusterSettings, read_settings
from rollout_assets.config import load_campaign

SAME = {
    "version": "another version than on the asking machine, which has {}",
    "campaign": "another campaign than on the asking machine, whose hash is {}",
    "source": "another source than on the asking machine, which sees {}",
}
"""What must be the same on every node, and how it is said that it is not."""

THINGS = ("version", "campaign", "source", "output", "device", "clock", "dagster", "database")
"""What every node is asked about, in the order of the table."""

HERE = "this machine"
CLUSTER = "cluster"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, where, and what it is about."""

    node: str
    about: str
    text: str

    def __str__(self) -> str:
        return f"{self.node}: {self.about}: {self.text}"


@dataclass(frozen=True)
class ClusterCheck:
    """What all nodes answered, this machine first, and everything that is wrong."""

    campaign: str
    launcher: str
    slots: int | None
    places: int | None
    reports: tuple[NodeReport, ...]
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether a backfill can be launched."""
        return not self.problems


def check_cluster(campaign: str | Path, home: Path | None) -> ClusterCheck:
    """Ask this machine, and every node of the cluster that the instance at ``home`` launches runs on.

    Without a cluster this machine is all there is. A campaign or an instance that cannot be read here is an error.
    """
    path = Path(campaign)
    name = str(path.resolve()) if path.is_file() else str(campaign)
    load_campaign(name)
    settings = read_settings(home)
    answers = None
    with token_in_output(name) as token:
        question = Question(name, token, settings.num_gpus, settings.database)
        here = examine_node(replace(question, num_gpus=0.0), HERE)
        if settings.launcher == "ray":
            answers = ask_ray(question, settings)
    nodes = () if answers is None else tuple(compare(report, here) for report in answers.reports)
    return ClusterCheck(
        campaign=name,
        launcher=settings.launcher,
        slots=settings.slots,
        places=None if answers is None else answers.places,
        reports=(here, *nodes),
        problems=tuple(_problems((here, *nodes), settings, answers)),
    )


def compare(report: NodeReport, here: NodeReport) -> NodeReport:
    """A node's report, with a problem for everything that must be as on the asking machine and is not."""
    answers: dict[str, Answer] = dict(report.answers)
    for thing, text in SAME.items():
        answer, own = answers.get(thing), here.answers[thing]
        if answer is not None and not answer.problem and not own.problem and answer.value != own.value:
            answers[thing] = replace(answer, problem=f"{answer.value}: {text.format(own.value)}")
    return NodeReport(report.node, answers)


def _problems(
    reports: tuple[NodeReport, ...], settings: ClusterSettings, answers: RayAnswers | None
) -> Iterator[Problem]:
    for report in reports:
        yield from (Problem(report.node, about, text) for about, text in report.problems())
    yield from (Problem(CLUSTER, about, text) for about, text in slot_problems(settings, answers).items())


def slot_problems(settings: ClusterSettings, answers: RayAnswers | None) -> Mapping[str, str]:
    """What is wrong with the number of runs at a time, and with a storage that machines cannot share."""
    problems = {}
    if settings.slots is not None and settings.pool_limit is not None and settings.slots != settings.pool_limit:
        problems["pool"] = (
            f"max_concurrent_runs is {settings.slots} and the pool's default_limit is {settings.pool_limit}; "
            "set one number for both, as infra/cluster/ray/dagster.yaml does"
        )
    if settings.launcher == "here":
        return problems
    if settings.database is None:
        problems["database"] = "the instance has SQLite, which other machines cannot share; use Postgres"
    if answers is None:
        return problems
    if not answers.reports:
        problems["nodes"] = "no node has room for a run; start nodes with what num_cpus and num_gpus ask for"
    elif settings.slots is None:
        problems["slots"] = f"max_concurrent_runs is not set, and there is room for {answers.places} at a time; set it"
    elif settings.slots > answers.places:
        problems["slots"] = (
            f"{settings.slots} runs may be under way at a time, and there is room for {answers.places}: the others "
            "would wait inside Ray until they are given up; lower max_concurrent_runs or add nodes"
        )
    return problems
