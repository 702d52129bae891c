"""The repository as a newcomer finds it: its top level, and a set-up that does its work once."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STAMP = ROOT / ".venv" / ".installed"


def test_the_top_level_is_what_the_design_says():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    shown = {name.split("/")[0] for name in tracked.splitlines() if not name.startswith(".")}
    assert shown == {
        "pyproject.toml",
        "README.md",
        "rollout_assets",
        "tests",
        "dagster_home",
        "workspace.yaml",
        "infra",
    }


@pytest.mark.skipif(
    not STAMP.exists() or STAMP.parent.is_symlink(), reason="this environment was not made by this tree's infra/setup"
)
def test_a_second_set_up_installs_nothing():
    before = STAMP.stat().st_mtime_ns
    again = subprocess.run(["bash", "infra/setup"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert again.stdout == again.stderr == ""
    assert STAMP.stat().st_mtime_ns == before


def test_a_python_that_cannot_be_used_is_refused_by_name(tmp_path):
    copy = tmp_path / "infra" / "setup"
    copy.parent.mkdir()
    copy.write_bytes((ROOT / "infra" / "setup").read_bytes())
    environment = os.environ | {"PYTHON": "/nowhere/python"}
    refused = subprocess.run(["bash", str(copy)], capture_output=True, text=True, env=environment)
    assert refused.returncode == 1
    assert refused.stderr == "error: PYTHON=/nowhere/python is not a Python 3.11 or newer with the venv module\n"


@pytest.mark.parametrize(("ci", "tests", "code"), [(0, 0, 0), (2, 0, 2), (0, 1, 1)])
def test_ci_runs_the_shipped_campaign_with_a_junit_file_and_then_the_tests(tmp_path, ci, tests, code):
    log = tmp_path / "log"
    stubs = {
        ".ci/run": (ROOT / ".ci" / "run").read_text(),
        "infra/setup": "",
        "infra/test": f'#!/bin/sh\necho tests >> "{log}"\nexit {tests}\n',
        ".venv/bin/python": f'#!/bin/sh\necho "pytest: $@" >> "{log}"\n',
        ".venv/bin/rollout-assets": f'#!/bin/sh\necho "$@ in $DAGSTER_HOME" >> "{log}"\nexit {ci}\n',
    }
    for name, text in stubs.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    home = tmp_path / "dagster_home" / "ci"
    home.mkdir(parents=True)
    (home / "left by the last run").touch()
    done = subprocess.run([tmp_path / ".ci" / "run"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, "")
    assert log.read_text().splitlines() == [
        f"ci --junit {home}/junit.xml in {home}",
        "pytest: -m pytest --numprocesses 3 --dist worksteal --quiet -m ci and not slow and not cluster",
        "tests",
    ]
    assert list(home.iterdir()) == []
    ignored = subprocess.run(["git", "check-ignore", "-q", "dagster_home/ci/junit.xml"], cwd=ROOT)
    assert ignored.returncode == 0


def test_the_demo_lets_its_processes_keep_bytecode(tmp_path):
    stubs = {
        "infra/demo": (ROOT / "infra" / "demo").read_text(),
        "infra/setup": (ROOT / "infra" / "setup").read_text(),
        "infra/constraints.txt": "torch==1\nother==2  # demo\n",
        "pyproject.toml": "",
        ".venv/bin/python": f'#!/bin/sh\necho "$@" >> "{tmp_path}/log"\necho 3.11\n',
        ".venv/bin/rollout-assets": '#!/bin/sh\necho "$@: ${PYTHONDONTWRITEBYTECODE-kept}"\n',
    }
    for name, text in stubs.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    for _ in range(2):
        done = subprocess.run([tmp_path / "infra/demo", "--json"], capture_output=True, text=True, env=environment)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "demo --json: kept"), done.stderr
    imported = [line for line in (tmp_path / "log").read_text().splitlines() if "importlib" in line]
    assert sorted(line.rpartition("] ")[2].split()[0] for line in imported) == ["dagster"]
