"""A tiny campaign, materialized once through a real instance; each test gets a copy that it may change."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import read_owner
from rollout_assets.config import CampaignConfig, load_campaign
from rollout_assets.defs.headless import HeadlessResult, HeadlessRunner, materialize_campaign
from tests.defs.campaigns import write_campaign

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Desk:
    """A folder with a source, a campaign on it, and the home of an instance."""

    folder: Path

    @property
    def campaign(self) -> Path:
        return self.folder / "tiny.toml"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def source(self) -> Path:
        return self.folder / "source"

    @property
    def config(self) -> CampaignConfig:
        return load_campaign(self.campaign)

    @property
    def layout(self) -> CampaignLayout:
        return CampaignLayout.of(self.config)

    def runner(self) -> HeadlessRunner:
        return HeadlessRunner(str(self.campaign), str(self.home))

    def materialize(self, **options) -> HeadlessResult:
        return materialize_campaign(self.campaign, home=self.home, **options)

    def content(self) -> dict[str, str]:
        """Shard -> digest of its content."""
        shards = sorted(path for path in self.layout.shards.iterdir() if path.is_dir())
        return {path.name: read_owner(path).store.content_sha256 for path in shards}


def new_desk(folder: Path, store: Path, **options) -> Desk:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(store, folder / "source", ignore=shutil.ignore_patterns("meshes"))
    (folder / "source" / "meshes").mkdir()
    for mesh in (store / "meshes").iterdir():
        shutil.copyfile(mesh, folder / "source" / "meshes" / mesh.name)
    write_campaign(folder, Path("source"), **options)
    (folder / "home").mkdir()
    shutil.copy(REPOSITORY / "dagster_home" / "dagster.yaml", folder / "home")
    return Desk(folder)


@pytest.fixture
def desk(tmp_path, small_store) -> Desk:
    """A campaign of two shards of which nothing is made yet."""
    return new_desk(tmp_path / "desk", small_store, rows_per_shard=2)


@pytest.fixture(scope="session")
def finished_desk(tmp_path_factory, small_store) -> tuple[Desk, HeadlessResult]:
    """The same, materialized once for all tests. Shared: copy before changing."""
    desk = new_desk(tmp_path_factory.mktemp("finished") / "desk", small_store, rows_per_shard=2)
    return desk, desk.materialize()


@pytest.fixture
def made_desk(tmp_path, finished_desk) -> Desk:
    """A copy of the materialized one."""
    shutil.copytree(finished_desk[0].folder, tmp_path / "copy", symlinks=True, copy_function=shutil.copy2)
    return Desk(tmp_path / "copy")
