"""The pages say what the code does: the format is the schema's, the worked label is recomputed, named files exist."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout_assets.config import OracleConfig, load_campaign
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.poses import IDENTITY_POSE
from rollout_assets.oracle.naive import crop
from rollout_assets.reports.schema_page import schema_markdown
from rollout_assets.rollouts.zarr_store.schema import array_paths
from rollout_assets.testing.fake_observations import fake_observations

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "infra" / "docs"


def test_the_page_about_the_format_is_current():
    assert (DOCS / "store_format.md").read_text() == schema_markdown()


def test_the_page_about_the_format_names_every_array():
    page = schema_markdown()
    assert [path for path in array_paths() if f"`{path.split('/')[1]}`" not in page and f"`{path}`" not in page] == []


def test_the_worked_label_is_what_the_oracle_measures():
    errors = [0.01 + (0.75**3 + 0.25**3) / 3 + 0.01 + 1 / 12, 0.0, 0.01 / 3 + 0.25**2 / 3 + 1 / 12]
    errors[1] = 0.005 + (0.24**3 + 0.25**3 + 0.25**3 + 0.26**3) / 3 + 0.49 * 0.01 + 1 / 12
    vertices = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]], np.float32) - np.float32([0.5, 0.5, 0])
    faces = np.array([[0, 1, 2], [1, 3, 2]], np.int32)
    box = OrientedBoxes(IDENTITY_POSE[None], np.array([[1.0, 1.0, 0.2]], np.float32))
    surface = crop(vertices, faces, box, OracleConfig())
    points = np.array([(0.25, 0.5, 0.1), (0.75, 0.5, 0.0), (0.25, 0.5, 0.0)]) - [0.5, 0.5, 0]
    assert [surface.error(points[:count]) for count in (1, 2, 3)] == pytest.approx(errors, rel=0.01)
    page = (DOCS / "labels.md").read_text()
    cumulative = 0.0
    for step, (before, after) in enumerate(pairwise(errors)):
        root_gain = (before - after) / errors[0]
        cumulative += root_gain
        values = (before, after, (before - after) / before, root_gain, cumulative)
        assert f"| {step} | {' | '.join(f'{value:.6f}' for value in values)} |" in page
    assert cumulative == pytest.approx(1 - errors[-1] / errors[0])


@pytest.mark.parametrize("page", [".github/CONTRIBUTING.md", *(f"infra/docs/{p.name}" for p in DOCS.glob("*.md"))])
def test_files_that_a_page_names_exist(page):
    text = (ROOT / page).read_text()
    named = re.findall(r"`((?:rollout_assets|tests|infra)/[\w/.]+)`", text)
    named += [f"{(ROOT / page).parent.relative_to(ROOT)}/{path}" for path in re.findall(r"\]\(([\w./]+)\)", text)]
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_policy_of_the_page_is_one():
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "policies.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    policy = names["highest_view"](None)
    observations = fake_observations(3, 5, policy.observation)
    heights = observations.candidate_pose_target[..., 11]
    assert np.array_equal(policy.scores(observations), heights) and isinstance(policy.score_source, str)


def test_the_campaigns_of_the_page_about_rounds_can_be_read(tmp_path):
    blocks = re.findall(r"`(\w+\.toml)`:\n\n```toml\n(.*?)```", (DOCS / "rounds.md").read_text(), re.DOTALL)
    assert [name for name, _ in blocks] == ["first.toml", "second.toml"]
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    checkpoint = tmp_path / "first" / "policy" / "policy.safetensors"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"weights")
    second = load_campaign(tmp_path / "second.toml")
    assert second.source.store_dir == tmp_path / "homes" and second.recipes[0].checkpoint == checkpoint
    assert second.training is not None and second.training.epochs == 20
    assert second.training.stores == (tmp_path / "first" / "rollouts.zarr",)
    assert second.evaluation is not None and second.evaluation.policies[0].checkpoint == checkpoint
