"""The quality section: whether a researcher sees in a minute that labels cannot be trusted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from rollout_assets.config import QualityConfig, load_campaign
from rollout_assets.inspection.second_opinion import second_opinion
from rollout_assets.inspection.stored_opinion import SecondOpinion, publish_opinion, read_opinion
from rollout_assets.reports import quality, quality_section
from rollout_assets.reports.store_report import write_store_report
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreConfig, RolloutZarrStoreReader, write_rollout_zarr_store
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.testing.tiny_campaign import build_tiny_source, write_tiny_campaign

pytestmark = pytest.mark.ci


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
    assert "gt_obb_clipped_surface_v1" in text
    assert "inspect second-opinion" in text and text.count("Plotly.newPlot(") == 3


@pytest.fixture(scope="module")
def opinion(reader, campaign) -> SecondOpinion:
    return second_opinion(reader, 1.0, 0, campaign, limit=2)


def test_weightings_are_compared_on_the_source(reader, campaign, tmp_path: Path) -> None:
    assert "median rank correlation" in part(write_store_report(reader, tmp_path / "r.html", campaign=campaign))
    gone = campaign.model_copy(update={"source": campaign.source.model_copy(update={"store_dir": tmp_path / "gone"})})
    assert str(tmp_path / "gone") in (quality.weighting_agreement(reader, gone).problem or "")


def test_a_second_opinion_shows_agreement_worst_rows_and_moves_under_noise(reader, opinion, tmp_path: Path) -> None:
    text = part(write_store_report(reader, tmp_path / "report.html", opinion=opinion))
    assert "2 of 2" in text and opinion.rays in text and opinion.distances in text
    assert f">{opinion.worst['candidate_row_id'][0]}<" in text
    largest = opinion.labels.filter(pl.col("label") == "target_root_gain")["moved"].max()
    assert f"{largest:.2g}" in text and "1e-05" in text


def test_what_a_second_opinion_does_not_confirm_is_bad(reader, opinion, tmp_path: Path) -> None:
    false = opinion.labels.with_columns((pl.col("label") != "target_rri").alias("agrees"))
    text = part(write_store_report(reader, tmp_path / "r.html", opinion=replace(opinion, labels=false)))
    assert "0 of 2" in text and "2 of 2" not in text


def test_limits_come_from_the_campaign(reader, campaign, opinion) -> None:
    def cards(**limits) -> dict[str, str]:
        strict = campaign.model_copy(update={"quality": QualityConfig(**limits)})
        report = quality_section.QualityReport(reader, pl.DataFrame(), strict, opinion)
        return {name: getattr(value, "html", "") for name, value in quality_section._cards(report).items()}

    names = {
        "negative": {"max_negative_share": (0.0, 0.0)},
        "hang on single points": {"one_point_gain": 1e-9, "max_one_point_share": (0.0, 0.0)},
        "noise moves a gain by at most": {"max_noise_move": 1e-15},
    }
    for name, limits in names.items():
        assert "bad" in cards(**limits)[name] and "good" in cards(one_point_gain=1e3)[name]
    assert campaign.hashes() == campaign.model_copy(update={"quality": QualityConfig(max_noise_move=1.0)}).hashes()


def test_an_opinion_is_read_back_for_the_store_it_is_about(reader, opinion, tmp_path: Path) -> None:
    path = tmp_path / "train.second_opinion.json"
    assert read_opinion(path, reader) is None
    publish_opinion(path, opinion, reader)
    again = read_opinion(path, reader)
    assert again is not None and again.scope == opinion.scope
    assert_frame_equal(again.labels, opinion.labels)
    path.write_text(path.read_text().replace(reader.attributes["manifest_sha256"], "0" * 64))
    assert read_opinion(path, reader) is None
    path.write_text("{")
    assert read_opinion(path, reader) is None


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
