"""The report: one file, no network, every figure drawn, nothing on the browser's console."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rollout_assets.config import CampaignConfig, SelectedDepthRetentionConfig
from rollout_assets.reports.rollout_picture import plot_stored_rollout
from rollout_assets.reports.store_report import PARTS, write_store_report
from rollout_assets.rollouts.zarr_store import (
    RolloutZarrStoreConfig,
    RolloutZarrStoreReader,
    write_rollout_zarr_store,
)
from rollout_assets.testing.fake_records import SyntheticRecords
from tests.support.waiting import PATIENCE_S

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --use-gl=swiftshader --enable-unsafe-swiftshader --disable-quic "
    "--no-first-run --disable-background-networking --disable-component-update --disable-sync "
    "--virtual-time-budget=20000 --enable-logging=stderr --v=0 --window-size=1300,2000"
)
FIGURES = 9
SPEED_ADVICE = ("willReadFrequently", "GL Driver Message (OpenGL, Performance")
"""What a browser without a graphics card says of any 3-D canvas."""
SECTIONS = (
    "overview",
    "quality",
    "validity",
    "reasons",
    "gains",
    "headroom",
    "coverage",
    "depth",
    "suspicious",
    "steps",
    "lineage",
    "again",
)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> RolloutZarrStoreReader:
    path = tmp_path_factory.mktemp("report") / "rollouts.zarr"
    depth = SelectedDepthRetentionConfig(width_px=20, height_px=20)
    records = SyntheticRecords(sources=4, shell=(8, 20), depth_hw=(20, 20), recipes=("random_valid", "oracle_greedy"))
    write_rollout_zarr_store(path, records, RolloutZarrStoreConfig(selected_depth=depth))
    return RolloutZarrStoreReader(path)


@pytest.fixture(scope="module")
def page(reader: RolloutZarrStoreReader, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store_report(reader, tmp_path_factory.mktemp("page") / "deep" / "report.html")


def visit(page: Path, profile: Path, place: str = "") -> tuple[str, list[str]]:
    """The page as a browser has it after its scripts ran, and what they said on the console."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser found to open the report in; looked for {', '.join(BROWSERS)}")
    command = [browser, *FLAGS.split(), f"--user-data-dir={profile}", "--dump-dom", page.as_uri() + place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_the_page_has_every_section_and_needs_no_network(page: Path) -> None:
    html = page.read_text("utf-8")
    for section in SECTIONS:
        assert f'<section id="{section}">' in html and f'href="#{section}"' in html
    assert html.count("Plotly.newPlot(") == FIGURES
    assert not re.search(r'<(script|link|img|iframe)[^>]+(src|href)="(?!data:)', html)
    assert html.count('<img alt="depth" src="data:image/png;base64,') == 12
    assert "rollout-assets report" in html and "inspect explain" in html


def test_links_lead_somewhere(page: Path) -> None:
    body = re.sub(r"<script.*?</script>", "", page.read_text("utf-8"), flags=re.DOTALL)
    targets = set(re.findall(r'id="([^"]+)"', body))
    links = re.findall(r'href="#([^"]+)"', body)
    assert any(link.startswith("step-") for link in links) and any(link.startswith("kind-") for link in links)
    assert set(links) <= targets


@pytest.mark.ci
def test_a_browser_draws_every_figure_without_a_word_on_the_console(page: Path, tmp_path: Path) -> None:
    dom, console = visit(page, tmp_path)
    assert console == []
    for figure in range(1, FIGURES + 1):
        part = dom.split(f'id="figure-{figure}"')[1]
        assert "main-svg" in part.split('id="figure-')[0]


def test_a_store_without_rollouts_has_a_page_too(tmp_path: Path) -> None:
    records = [record for record in SyntheticRecords(sources=3, targets=1) if not record.chains][:1]
    config = RolloutZarrStoreConfig(selected_depth=SelectedDepthRetentionConfig(enabled=False))
    write_rollout_zarr_store(tmp_path / "empty.zarr", records, config)
    page = write_store_report(RolloutZarrStoreReader(tmp_path / "empty.zarr"), tmp_path / "empty.html")
    html = page.read_text("utf-8")
    assert "No step of this store took a view." in html and "keeps no depth" in html and "not ready" in html


def test_progress_counts_sections(reader: RolloutZarrStoreReader, tmp_path: Path) -> None:
    events = []
    write_store_report(reader, tmp_path / "report.html", progress=events.append)
    assert [event.done for event in events] == list(range(1, len(PARTS) + 1))


@pytest.mark.ci
def test_a_stored_rollout_in_3d(reader: RolloutZarrStoreReader, tmp_path: Path) -> None:
    plot_stored_rollout(reader, 0, None, tmp_path / "rollout.html")
    html = (tmp_path / "rollout.html").read_text("utf-8")
    assert "path taken" in html and "valid views" in html and "semi-dense" not in html.split("Plotly.newPlot")[-1]
    nowhere = CampaignConfig(name="gone", source={"store_dir": tmp_path / "nowhere"})
    plot_stored_rollout(reader, 1, nowhere, tmp_path / "again.html")
    dom, console = visit(tmp_path / "rollout.html", tmp_path / "profile", "#step-0")
    assert [line for line in console if not any(word in line for word in SPEED_ADVICE)] == []
    assert "gl-container" in dom
