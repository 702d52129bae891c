"""Campaigns as components: a project of somebody else loads them from ``defs.yaml`` files, side by side."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.defs.campaigns import write_campaign

pytestmark = pytest.mark.ci

LOAD = """
import warnings
warnings.simplefilter("error", UserWarning)
import dagster as dg
from pathlib import Path
definitions = dg.load_from_defs_folder(project_root=Path.cwd())
keys = {key.path[0] for key in definitions.resolve_asset_graph().get_all_asset_keys()}
print(*sorted(keys), *sorted(job.name for job in definitions.resolve_all_job_defs() if job.name.endswith("promote")))
"""


@pytest.fixture
def project(tmp_path, small_store) -> Path:
    """A project with a component for each of two campaigns."""
    root = tmp_path / "project"
    (root / "shop" / "defs").mkdir(parents=True)
    for folder in ("shop", "shop/defs"):
        (root / folder / "__init__.py").touch()
    (root / "pyproject.toml").write_text(
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "shop"\n'
    )
    for name in ("first", "second"):
        folder = root / "shop" / "defs" / name
        folder.mkdir()
        write_campaign(folder, small_store, name)
        (folder / "defs.yaml").write_text(
            f"type: rollout_assets.defs.component.Campaign\nattributes:\n  campaign: {name}.toml\n"
        )
    return root


def load(project: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", LOAD], cwd=project, capture_output=True, text=True, check=False)


def test_a_project_loads_its_campaigns_as_components(project):
    loaded = load(project)
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.split() == ["first", "second", "first_promote", "second_promote"]


def test_a_campaign_that_cannot_be_used_is_named(project):
    (project / "shop" / "defs" / "first" / "first.toml").write_text('name = "first"\nno_such_key = 1\n')
    loaded = load(project)
    assert loaded.returncode != 0 and "no_such_key" in loaded.stderr and "first.toml" in loaded.stderr
