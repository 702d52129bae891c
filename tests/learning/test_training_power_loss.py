"""The power goes at any point of a training: what it has reported is there, and resuming it gives the same bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rollout_assets.config.training import TrainingConfig
from rollout_assets.errors import TrainingError
from rollout_assets.learning.training.resume import RESUME_NAME, ResumePoint
from rollout_assets.learning.training.run import METRICS_NAME, POLICY_NAME, SUMMARY_NAME, read_metrics, train_policy
from tests.learning.test_training import config, two_scenes  # noqa: F401 - fixtures
from tests.support.power_loss import Enumeration, Operation, recorded, restarted
from tests.support.refusals import refused

STATES_BY_DEFAULT = 4


@pytest.fixture
def training(config: TrainingConfig, tmp_path: Path) -> Callable[[int | None], Enumeration]:  # noqa: F811
    """Interrupts one training everywhere, or at some places, and resumes it each time."""
    folder = tmp_path / "disk" / "policies" / "run"
    expected: dict[str, object] = {}

    def found() -> dict[str, object]:
        rows = [{name: value for name, value in row.items() if name != "seconds"} for row in read_metrics(folder)]
        return {"policy": (folder / POLICY_NAME).read_bytes(), "metrics": rows}

    def act() -> None:
        train_policy(config, folder, resume=True)

    def check(returned: bool) -> None:
        if returned:
            assert found() == expected and (folder / SUMMARY_NAME).is_file(), "what was reported is lost"
        act()
        assert found() == expected

    def enumerated(most: int | None) -> Enumeration:
        operation, recording = recorded(Operation("training", act, check), tmp_path / "disk")
        expected.update(found())
        return restarted(operation, recording, most)

    return enumerated


@pytest.mark.ci
def test_a_training_survives_some_power_losses(training: Callable[[int | None], Enumeration]) -> None:
    done = training(STATES_BY_DEFAULT)
    assert done.tried and not done.failures, "\n".join(done.failures)


@pytest.mark.slow
def test_a_training_survives_every_power_loss(training: Callable[[int | None], Enumeration]) -> None:
    done = training(None)
    sys.stdout.write(f"{done}\n")
    assert not done.failures, "\n".join(done.failures)


@pytest.mark.parametrize("left", [None, b"", b"\0" * 20])
def test_metrics_that_do_not_reach_the_resume_point(
    config: TrainingConfig,  # noqa: F811
    tmp_path: Path,
    left: bytes | None,
) -> None:
    train_policy(config, tmp_path)
    metrics = tmp_path / METRICS_NAME
    known = ResumePoint.read(tmp_path / RESUME_NAME).progress.metrics_bytes
    metrics.unlink() if left is None else metrics.write_bytes(left)
    with refused(TrainingError, metrics, known, len(left or b"")):
        train_policy(config, tmp_path, resume=True)
    assert metrics.exists() == (left is not None) and (left is None or metrics.read_bytes() == left)
