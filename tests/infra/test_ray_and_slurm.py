"""The shipped examples for Ray and Slurm: pods are valid, Ray reads its file, and the script starts what it says."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.infra.test_kubernetes import validate
from tests.support.refusals import assert_names, refused

CLUSTER = Path(__file__).resolve().parents[2] / "infra" / "cluster"


def test_the_pods_of_kuberay_are_valid_and_the_head_runs_nothing():
    cluster = yaml.safe_load((CLUSTER / "ray" / "kuberay.yaml").read_text())
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    for group in groups:
        validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "rollouts"}, **group["template"]})
    assert groups[0]["rayStartParams"]["num-cpus"] == "0"
    assert len({group["template"]["spec"]["containers"][0]["image"] for group in groups}) == 1


def test_ray_reads_the_file_of_ray_up():
    util = pytest.importorskip("ray.autoscaler._private.util", reason="pip install 'rollout-assets[cluster]'")
    config = yaml.safe_load((CLUSTER / "ray" / "ray-up.yaml").read_text())
    util.validate_config(util.prepare_config(config))
    with refused(Exception, "max_worker"):
        util.validate_config(util.prepare_config({**config, "max_worker": 3}))


def test_the_slurm_script_runs_the_campaign_that_it_is_given(tmp_path):
    program = tmp_path / "rollout-assets"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    script = CLUSTER / "slurm" / "campaign.sbatch"
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", script, "a b.toml"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "campaign run --campaign a b.toml\n"
    without = subprocess.run(["bash", script], env=environment, capture_output=True, text=True)
    assert without.returncode != 0
    assert_names(without.stderr, "campaign file")
    assert "#SBATCH --array=0-" in script.read_text()
