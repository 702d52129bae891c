"""The quality section: whether a researcher sees in a minute that labels cannot be trusted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from rollout_assets.config import load_campaign
from rollout_assets.reports import quality
from rollout_assets.reports.store_report import write_store_report
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreConfig, RolloutZarrStoreReader, write_rollout_zarr_store
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.testing.tiny_campaign import build_tiny_source, write_tiny_campaign


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("quality")
    return load_campaign(str(write_tiny_campaign(folder, build_tiny_source(folder, rows=2))))


@pytest.fixture(scope="module")
def reader(campaign, tmp_path_factory: pytest.TempPathFactory) -> RolloutZarrStoreReader:
    source, path = VinOfflineStore.open(campaign.source.store_dir), tmp_path_factory.mktemp("store") / "rollouts.zarr"
    records = RolloutGenerator(campaign, source).records([row for row in source.rows() if row.split == "train"])
    write_rollout_zarr_store(path, records, RolloutZarrStoreConfig.from_campaign(campaign))
    return RolloutZarrStoreReader(path)


def part(page: Path) -> str:
    return page.read_text("utf-8").split('<section id="quality">')[1].split("</section>")[0]


def test_the_store_alone_is_enough_and_says_what_was_not_measured(reader, tmp_path: Path) -> None:
    text = part(write_store_report(reader, tmp_path / "report.html"))
    assert "gt_obb_clipped_surface_v1" in text and "no source was given" in text
    assert "inspect second-opinion" in text and text.count("Plotly.newPlot(") == 3


def test_weightings_are_compared_on_the_source_and_a_second_opinion_is_quoted(reader, campaign, tmp_path: Path) -> None:
    opinion = pl.DataFrame({"moved": [1e-9, 3e-6]})
    text = part(write_store_report(reader, tmp_path / "report.html", campaign=campaign, opinion=opinion))
    assert "median rank correlation" in text and "largest 3e-06" in text
    gone = campaign.model_copy(update={"source": campaign.source.model_copy(update={"store_dir": tmp_path / "gone"})})
    assert "cannot be compared" in (quality.weighting_agreement(reader, gone).problem or "")


def test_negative_labels_are_counted_by_cause(reader) -> None:
    views = quality.labelled_views(reader)
    planted = views.with_columns(
        pl.when(pl.col("step_index") == 1).then(-1.0).otherwise(pl.col("target_root_gain")).alias("target_root_gain")
    )
    rows = quality.causes(reader, planted)
    assert set(rows["by"]) == {"crop policy", "recipe", "step", "class"}
    assert rows.filter(pl.col("by") == "step")["share"].to_list() == [1.0, 0.0]
    assert rows.group_by("by").agg(pl.col("labels").sum())["labels"].unique().to_list() == [views.height]


def test_headroom_is_the_best_gain_less_the_gain_that_was_taken() -> None:
    objectives = pl.DataFrame(
        {
            "recipe": ["a", "a"],
            "step_index": [0, 0],
            "best_root_gain": [0.5, 0.3],
            "marginal_target_root_gain": [0.1, 0.3],
        }
    )
    assert quality.headroom_rows(objectives)["headroom"].to_list() == pytest.approx([0.2])


def test_rank_correlation_and_verdicts() -> None:
    values = np.array([0.1, 0.5, 0.3, 0.9])
    assert quality.spearman(values, np.exp(values)) == pytest.approx(1.0)
    assert quality.spearman(values, -values) == pytest.approx(-1.0)
    assert [quality.verdict(share, (0.001, 0.01)) for share in (0.0, 0.005, 0.01)] == ["good", "careful", "bad"]
