"""Asking every node of a Ray cluster, in the way in which runs get there.

A job is submitted to the address that the launcher uses. It runs on the cluster, starts one task on every node that has
room for a run, with what a run is given, and prints the answers, which are read from the job's log. So the check meets
what a run would meet: the same interpreter, PATH, environment, devices and disks.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rollout_assets.cluster.node import Answer, NodeReport, Question, examine_node
from rollout_assets.cluster.settings import ClusterSettings
from rollout_assets.errors import MachineFault

ANSWERS = "ROLLOUT_ASSETS_NODES "
"""Beginning of the line of the job's log that holds the answers."""

NODE_PATIENCE_S = 120.0
"""How long a node may take; one whose places are all taken does not answer at all."""

JOB_PATIENCE_S = 300.0


@dataclass(frozen=True)
class RayAnswers:
    """What the nodes of a Ray cluster answered, and for how many runs at a time they have room."""

    reports: tuple[NodeReport, ...]
    places: int


def ask_ray(question: Question, settings: ClusterSettings) -> RayAnswers:
    """Ask every node of a cluster; one that cannot be asked at all is a ``MachineFault``."""
    from ray.job_submission import JobSubmissionClient  # only where runs go to Ray

    needs = {"num_cpus": settings.num_cpus, "num_gpus": settings.num_gpus}
    asked = json.dumps({"question": asdict(question), "needs": needs})
    try:
        client = JobSubmissionClient(settings.address)
        job = client.submit_job(
            entrypoint=f"python -m {__name__} '{asked.encode().hex()}'",
            runtime_env={"env_vars": settings.variables()},
            entrypoint_num_cpus=0,
        )
        log = _log_of(client, job)
    except (RuntimeError, ConnectionError) as error:
        raise MachineFault(f"Ray at {settings.address} did not take a job: {str(error).strip()}") from None
    for line in log.splitlines():
        if line.startswith(ANSWERS):
            return _answers(json.loads(line.removeprefix(ANSWERS)))
    last = " ".join(log.strip().splitlines()[-1:])
    raise MachineFault(f"Ray at {settings.address}: the job that asks the nodes failed: {last or 'it printed nothing'}")


def _log_of(client: Any, job: str) -> str:
    deadline = time.monotonic() + JOB_PATIENCE_S
    while not client.get_job_status(job).is_terminal():
        if time.monotonic() > deadline:
            client.stop_job(job)
            raise RuntimeError(f"the job that asks the nodes has not ended after {JOB_PATIENCE_S:.0f} s")
        time.sleep(0.5)
    return str(client.get_job_logs(job))


def _answers(raw: Mapping[str, Any]) -> RayAnswers:
    reports = (
        NodeReport(report["node"], {name: Answer(**answer) for name, answer in report["answers"].items()})
        for report in raw["reports"]
    )
    return RayAnswers(tuple(reports), int(raw["places"]))


def count_places(resources: Sequence[Mapping[str, float]], num_cpus: float, num_gpus: float) -> int:
    """How many runs nodes with such resources have room for at a time."""
    return sum(_places(node, num_cpus, num_gpus) for node in resources)


def _places(node: Mapping[str, float], num_cpus: float, num_gpus: float) -> int:
    rooms = [node.get(name, 0.0) / needed for name, needed in (("CPU", num_cpus), ("GPU", num_gpus)) if needed]
    return int(min(rooms) + 1e-6) if rooms else int(node.get("CPU", 0.0))


def ask_from_inside(question: Question, num_cpus: float, num_gpus: float) -> RayAnswers:
    """Ask all nodes from a process of the cluster."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
    living = [node for node in ray.nodes() if node["Alive"]]
    able = [node for node in living if _places(node["Resources"], num_cpus, num_gpus)]
    examine = ray.remote(max_retries=0)(examine_node)
    asked = {}
    for node in able:
        name = f"{node['NodeManagerHostname']} {node['NodeID'][:6]}"
        where = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
        options = {"num_cpus": num_cpus, "num_gpus": num_gpus, "scheduling_strategy": where}
        asked[name] = examine.options(**options).remote(question, name)
    ray.wait(list(asked.values()), num_returns=max(len(asked), 1), timeout=NODE_PATIENCE_S) if asked else None
    reports = tuple(_report(ray, name, answer) for name, answer in asked.items())
    return RayAnswers(reports, count_places([node["Resources"] for node in able], num_cpus, num_gpus))


def _report(ray: Any, name: str, answer: Any) -> NodeReport:
    try:
        report: NodeReport = ray.get(answer, timeout=0.1)
        return report
    except ray.exceptions.GetTimeoutError:
        problem = f"did not answer within {NODE_PATIENCE_S:.0f} s; are all its places taken by runs?"
    except Exception as error:  # the package is missing or another one there, or the node is gone
        problem = f"could not be asked: {str(error).strip().splitlines()[-1]}"
    return NodeReport(name, {"node": Answer("", problem)})


def main(asked: str) -> None:
    """The job on the cluster."""
    raw = json.loads(bytes.fromhex(asked))
    answers = ask_from_inside(Question(**raw["question"]), **raw["needs"])
    sys.stdout.write(f"\n{ANSWERS}{json.dumps(asdict(answers))}\n")


if __name__ == "__main__":
    main(sys.argv[1])
