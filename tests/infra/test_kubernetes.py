"""The shipped Kubernetes files: Dagster's own launcher makes a job of a run with our values, and the job is valid."""

import copy
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollout_assets.defs.code_location import CAMPAIGNS_VARIABLE
from tests.defs.campaigns import write_campaign
from tests.infra.kubernetes_api import running_api
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.ci  # imports the Kubernetes client and its schemas

kubernetes_validate = pytest.importorskip("kubernetes_validate")

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "infra" / "cluster" / "kubernetes"
IMAGE = "registry.example/rollout-assets:1"
VERSIONS = ("1.29", "1.33", "1.37")
"""Kubernetes versions whose schema a job must fit."""

LAUNCHER_KEYS = {
    "loadInclusterConfig": "load_incluster_config",
    "imagePullPolicy": "image_pull_policy",
    "failPodOnRunFailure": "fail_pod_on_run_failure",
    "resources": "resources",
    "envVars": "env_vars",
    "volumes": "volumes",
    "volumeMounts": "volume_mounts",
    "securityContext": "security_context",
}
"""Key of the chart's values -> key of the launcher, which the chart writes into ``dagster.yaml``."""


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return yaml.safe_load((FOLDER / "values.yaml").read_text())


def instance_of(values: dict[str, Any], home: Path, kubeconfig: Path) -> None:
    """``dagster.yaml`` as the chart writes it, with SQLite for Postgres and a kubeconfig for the cluster's own."""
    launcher = dict(values["runLauncher"]["config"]["k8sRunLauncher"])
    kubernetes = launcher.pop("runK8sConfig")
    secrets = [secret["name"] for secret in launcher.pop("envSecrets")]
    config = {LAUNCHER_KEYS[name]: value for name, value in launcher.items()} | {
        "env_secrets": secrets,
        "run_k8s_config": {
            "pod_spec_config": kubernetes["podSpecConfig"],
            "job_spec_config": kubernetes["jobSpecConfig"],
        },
        "job_namespace": "rollouts",
        "service_account_name": "dagster",
        "dagster_home": "/opt/dagster/dagster_home",
        "instance_config_map": "dagster-instance",
        "postgres_password_secret": values["global"]["postgresqlSecretName"],
        "load_incluster_config": False,
        "kubeconfig_file": str(kubeconfig),
    }
    runs, pools = values["concurrency"]["runs"], values["concurrency"]["pools"]
    instance = {
        "run_launcher": {"module": "dagster_k8s", "class": "K8sRunLauncher", "config": config},
        "run_coordinator": {"module": "dagster.core.run_coordinator", "class": "DefaultRunCoordinator"},
        "concurrency": {
            "runs": {"max_concurrent_runs": runs["maxConcurrentRuns"]},
            "pools": {"default_limit": pools["defaultLimit"], "granularity": pools["granularity"]},
        },
        "telemetry": values["telemetry"],
        **values["additionalInstanceConfig"],
    }
    (home / "dagster.yaml").write_text(yaml.safe_dump(instance))


@pytest.fixture(scope="module")
def job(values, tmp_path_factory) -> dict[str, Any]:
    """The job that Dagster asks Kubernetes for when the run of one shard is launched."""
    folder = tmp_path_factory.mktemp("kubernetes")
    campaign = write_campaign(folder, folder / "source")
    (folder / "home").mkdir()
    with running_api() as api:
        instance_of(values, folder / "home", api.write_kubeconfig(folder / "kubeconfig"))
        environment = os.environ | {
            "DAGSTER_HOME": str(folder / "home"),
            CAMPAIGNS_VARIABLE: str(campaign),
            "DAGSTER_CURRENT_IMAGE": IMAGE,
        }
        launch = [
            sys.executable,
            "-m",
            "dagster",
            "job",
            "launch",
            "-m",
            "rollout_assets.definitions",
            "-j",
            "tiny_plan",
        ]
        done = subprocess.run(launch, env=environment, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
    (job,) = api.jobs
    return job


def validate(resource: dict[str, Any]) -> None:
    for version in VERSIONS:
        kubernetes_validate.validate(resource, version, strict=True)


def test_the_job_of_a_run_is_valid(job):
    validate(job)
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")


def test_the_job_has_what_the_values_ask_for(job, values):
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    wanted = values["runLauncher"]["config"]["k8sRunLauncher"]
    assert container["image"] == IMAGE
    assert container["resources"] == wanted["resources"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert [source["secretRef"]["name"] for source in container["envFrom"]] == ["rollout-object-store"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert variables[CAMPAIGNS_VARIABLE] == "/campaigns/campaign.toml" and variables["TMPDIR"] == "/scratch"
    password = next(variable for variable in container["env"] if variable["name"] == "DAGSTER_PG_PASSWORD")
    assert password["valueFrom"]["secretKeyRef"] == {"name": "rollout-postgresql", "key": "postgresql-password"}
    assert container["args"][:3] == ["dagster", "api", "execute_run"]
    assert {"campaign", "scratch"} <= {volume["name"] for volume in pod["volumes"]}
    assert {"/campaigns", "/scratch"} <= {mount["mountPath"] for mount in container["volumeMounts"]}
    assert pod["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert job["spec"]["backoffLimit"] == 0 and container["securityContext"]["runAsNonRoot"] is True


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("spec", "backoffLimit"), "none"),
        (("spec", "template", "spec", "containers", 0, "resources", "gpus"), 1),
        (("spec", "template", "spec", "tolerations", 0, "effects"), "NoSchedule"),
        (("spec", "template", "spec", "containers", 0, "volumeMounts"), [{"name": "scratch"}]),
    ],
)
def test_a_job_with_a_mistake_is_refused(job, path, wrong):
    broken = copy.deepcopy(job)
    place = broken
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = wrong
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(broken)


def test_slots_are_one_number(values):
    text = (FOLDER / "values.yaml").read_text()
    assert text.count("&slots") == text.count("*slots") == 1
    assert values["concurrency"]["runs"]["maxConcurrentRuns"] == values["concurrency"]["pools"]["defaultLimit"]


def test_secrets_are_valid_and_are_those_that_the_values_name(values):
    secrets = list(yaml.safe_load_all((FOLDER / "secrets.yaml").read_text()))
    for secret in secrets:
        validate(secret)
    (code_location,) = values["dagster-user-deployments"]["deployments"]
    launcher = values["runLauncher"]["config"]["k8sRunLauncher"]
    named = {secret["name"] for place in (launcher, code_location) for secret in place["envSecrets"]}
    assert {secret["metadata"]["name"] for secret in secrets} == named | {values["global"]["postgresqlSecretName"]}


def instructions(path: Path) -> list[tuple[str, str]]:
    """Every instruction of a Dockerfile with its words, continued lines put together."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in text.splitlines()]


def test_the_image_copies_existing_files_and_known_extras():
    """There is no engine here to build it with: what can be known without one is checked."""
    steps = instructions(FOLDER / "Dockerfile")
    assert {name for name, _ in steps} <= {"FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "CMD"}
    for source in [word for name, words in steps if name == "COPY" for word in words.split()[:-1]]:
        assert (ROOT / source).exists(), source
    (install,) = [words for name, words in steps if name == "RUN" and "pip install" in words]
    wanted = re.search(r"\.\[(.+)\]", shlex.split(install)[-1])
    assert wanted is not None
    extras = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", extras, re.MULTILINE) for extra in wanted[1].split(","))
    assert [words for name, words in steps if name == "USER"] == ["1000"]
