"""`rollout-assets train` and `policy show`: from a file or a campaign to a checkpoint; wrong input is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollout_assets.config import commented_toml
from rollout_assets.config.training import TrainingConfig, load_training
from tests.learning.conftest import observed_campaign, observed_store  # noqa: F401 - fixtures
from tests.learning.test_training import config, two_scenes  # noqa: F401 - fixtures
from tests.support.commands import call
from tests.support.refusals import assert_names


@pytest.fixture
def training(config: TrainingConfig, tmp_path: Path) -> Path:  # noqa: F811
    path = tmp_path / "training.toml"
    path.write_text(commented_toml(config.model_copy(update={"output_dir": Path("trained")})))
    return path


def test_the_example_reads_back_with_every_default(tmp_path: Path) -> None:
    done = call("train", "--example")
    assert (done.code, done.err) == (0, "")
    path = tmp_path / "training.toml"
    path.write_text(done.out)
    loaded = load_training(path)
    assert loaded.config_hash == TrainingConfig().config_hash
    assert loaded.stores == (tmp_path / "campaign/rollouts.zarr",)
    for name in TrainingConfig.model_fields:
        assert name in done.out


@pytest.mark.ci
def test_a_training_from_a_file(training: Path) -> None:
    done = call("train", str(training), "--set", "epochs=1")
    assert (done.code, done.err) == (0, ""), done.err
    folder = training.parent / "trained"
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert names == {"policy.safetensors", "metrics.jsonl", "training.json", "curves.html", "resume.safetensors"}
    for part in ("share of headroom", "policy.safetensors", "curves.html", "min"):
        assert part in done.out
    assert "<script src" not in (folder / "curves.html").read_text()

    again = call("train", str(training), "--set", "epochs=1")
    assert again.code == 2
    assert_names(again.err, folder)
    other = call("train", str(training), "--set", "epochs=2", "--resume")
    assert other.code == 2
    assert_names(other.err, "config.epochs", 1, 2)
    resumed = call("train", str(training), "--set", "epochs=1", "--resume", "--json")
    assert resumed.code == 0
    shown = call("policy", "show", str(folder / "policy.safetensors"), "--json")
    card = json.loads(shown.out)
    assert card["sha256"] == json.loads(resumed.out)["checkpoint_sha256"]
    assert card["head"] == "gain"
    table = call("policy", "show", str(folder / "policy.safetensors"))
    assert table.code == 0
    assert card["sha256"] in table.out and "learned_gain" in table.out


def test_sources_are_those_that_the_stores_record(config: TrainingConfig, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "training.toml"
    path.write_text(commented_toml(config.model_copy(update={"sources": ()})))
    done = call("train", str(path), "-o", str(tmp_path / "out"), "--set", "epochs=1")
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((), ["stores", "-c"]),
        (("absent.toml",), ["absent.toml", "rollout-assets train --example"]),
        (("--set", "epochs=0"), ["epochs", 1, "got 0"]),
        (("--set", "epoch=3"), ["epoch: ", "epochs"]),
        (("--set", 'device="gpu"'), ["device", "gpu"]),
        (("-c", "absent"), ["absent", "campaign"]),
    ],
)
def test_wrong_input_is_refused(arguments: tuple[str, ...], names: list[object], tmp_path: Path) -> None:
    done = call("train", *arguments, "-o", str(tmp_path / "out"))
    assert done.code == 2
    assert_names(done.err, *names)
    assert "Traceback" not in done.err
    assert not (tmp_path / "out").exists()


def test_a_campaign_that_is_not_promoted_is_refused(tmp_path: Path) -> None:
    campaign = tmp_path / "mine.toml"
    campaign.write_text('name = "mine"\n')
    done = call("train", "-c", str(campaign), "-o", str(tmp_path / "out"))
    assert done.code == 2
    assert_names(done.err, "rollout-assets campaign promote -c", campaign)


def test_a_file_that_is_no_checkpoint_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    path.write_text("nothing of the kind")
    done = call("policy", "show", str(path))
    assert done.code == 2
    assert done.err.startswith("error: ") and done.err.count("\n") == 1
