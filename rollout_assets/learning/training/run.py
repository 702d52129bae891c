"""Trains a policy: from states with labels to a checkpoint, reproducibly, and so that it can be stopped at any moment.

    <folder>/policy.safetensors   the checkpoint of the best epoch
             metrics.jsonl        one line per epoch
             training.json        the configuration, what was read, and what came of it
             resume.safetensors   what is needed to go on

Killed and resumed gives the same weights as undisturbed, to the bit, on a CPU: what is random in a batch follows from
the seed and the batch's number, and the rest is in the file that training resumes from.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from rollout_assets.config.training import TrainingConfig
from rollout_assets.errors import TrainingError, counted
from rollout_assets.files import append_bytes, file_lock, file_sha256, make_folder, publish_bytes, publish_json
from rollout_assets.learning.checkpoints import PolicyCard, observed_arrays, parameter_count, save_checkpoint
from rollout_assets.learning.training.choices import ChoiceQuality, Choices
from rollout_assets.learning.training.data import TrainingData, open_training_data
from rollout_assets.learning.training.learner import Learner, observed
from rollout_assets.learning.training.objectives import GainLabels, head_of
from rollout_assets.learning.training.resume import RESUME_NAME, ResumePoint, RunIdentity, RunProgress
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink

POLICY_NAME = "policy.safetensors"
METRICS_NAME = "metrics.jsonl"
SUMMARY_NAME = "training.json"

_LOCK_NAME = ".lock"


@dataclass(frozen=True)
class TrainingResult:
    """What a training came to; ``validation`` is that of the best epoch, whose weights the checkpoint holds."""

    folder: Path
    checkpoint: Path
    checkpoint_sha256: str
    epochs: int
    best_epoch: int
    stopped_by: str
    seconds: float
    validation: dict[str, float]


def train_policy(
    config: TrainingConfig, folder: Path, *, resume: bool = False, progress: ProgressSink = SILENT
) -> TrainingResult:
    """Train into a folder; ``resume`` goes on with what is there, without it an older training is refused."""
    make_folder(folder)
    with file_lock(folder / _LOCK_NAME, str(folder), busy=TrainingError):
        _refuse_what_is_there(folder, resume)
        with reproducible(config):
            run = _Run(config, open_training_data(config), folder, progress)
            run.restore() if (folder / RESUME_NAME).exists() else run.begin()
            return run.to_the_end()


@contextmanager
def reproducible(config: TrainingConfig) -> Iterator[None]:
    """Inside the block torch computes in one order, with the configured number of threads; afterwards as before."""
    threads, exact = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    on_cpu = config.device == "cpu"
    torch.set_num_threads(config.threads)
    torch.use_deterministic_algorithms(True, warn_only=not on_cpu)
    try:
        with torch.random.fork_rng(devices=[] if on_cpu else None):
            yield
    finally:
        torch.use_deterministic_algorithms(exact)
        torch.set_num_threads(threads)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a training's metrics."""
    path = folder / METRICS_NAME
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []


def validate(learner: Learner, data: TrainingData, progress: ProgressSink = SILENT) -> ChoiceQuality:
    """How well a network chooses among the views of states held out."""
    choices, loader = Choices(), data.validation_loader()
    for number, batch in enumerate(loader):
        labels = GainLabels.of(batch, 1.0)
        scores = head_of(learner.predict(batch), learner.config.head)
        first = observed(batch).taken_mask.sum(dim=1) == 1
        choices.add(*(part.cpu().numpy() for part in (scores, labels.gain, labels.mask, first)))
        progress(ProgressEvent("validation", number + 1, len(loader), unit="batches"))
    return choices.quality()


def _refuse_what_is_there(folder: Path, resume: bool) -> None:
    here = [name for name in (RESUME_NAME, POLICY_NAME, METRICS_NAME) if (folder / name).exists()]
    if here and not resume:
        raise TrainingError(f"{folder}: already has {', '.join(here)}; resume to go on, or choose another folder")
    if resume and here and RESUME_NAME not in here:
        raise TrainingError(f"{folder}: has {', '.join(here)}, but no {RESUME_NAME} to go on from")


class _Run:
    """One training from its beginning, or from where it stopped, to its end."""

    def __init__(self, config: TrainingConfig, data: TrainingData, folder: Path, progress: ProgressSink) -> None:
        self.config = config
        self.data = data
        self.folder = folder
        self.loader = data.training_loader()
        self.learner = Learner(config, data.scale, batches=len(self.loader) * config.epochs)
        self.state = RunProgress(self.loader.state_dict())
        self.best = self.learner.weights()
        self._tell = progress
        self._began = time.monotonic()

    def begin(self) -> None:
        """Start with nothing."""
        self._write_resume_point()

    def restore(self) -> None:
        """Take up where the last resume point was written; metrics beyond it are forgotten."""
        path = self.folder / RESUME_NAME
        point = ResumePoint.read(path)
        point.refuse_other_run(self._identity(), path)
        self.learner.load(point.groups)
        self.best = point.groups["best"]
        self.state = point.progress
        self.loader.load_state_dict(point.progress.position)
        self._restore_metrics(point.progress.metrics_bytes)
        self._began = time.monotonic() - point.progress.seconds

    def _restore_metrics(self, size: int) -> None:
        """Keep the metrics up to the resume point; ``TrainingError`` if they are not all there."""
        path = self.folder / METRICS_NAME
        written = path.read_bytes() if path.is_file() else b""
        kept = written[:size]
        try:
            rows = [json.loads(line) for line in kept.splitlines()]
        except ValueError:
            rows = []
        if len(kept) < size or len(rows) < self.state.epoch:
            raise TrainingError(
                f"{path}: {len(written)} bytes are there, of which the first {size} should tell of "
                f"{counted(self.state.epoch, 'epoch')}, and do not; put the file back, or begin again in another folder"
            )
        if written != kept:
            publish_bytes(path, kept)

    def to_the_end(self) -> TrainingResult:
        """Epoch after epoch until something says stop, then the checkpoint."""
        while not self.state.finished:
            self._epoch()
        return self._publish()

    def _epoch(self) -> None:
        for batch in self.loader:
            loss = self.learner.learn(batch, self.state.batches)
            self.state = self.state.but(
                batches=self.state.batches + 1,
                epoch_loss=self.state.epoch_loss + loss * len(batch),
                epoch_states=self.state.epoch_states + len(batch),
            )
            self._report()
            if self.state.batches % self.config.resume_batches == 0:
                self._write_resume_point()
        self._end_epoch(validate(self.learner, self.data, self._tell))

    def _end_epoch(self, quality: ChoiceQuality) -> None:
        number = self.state.epoch
        metrics = {f"validation_{name}": value for name, value in asdict(quality).items()}
        better = quality.share_of_headroom > self._best_share
        if better:
            self.best = self.learner.weights()
            self.state = self.state.but(best_epoch=number, best_metrics=metrics)
        size = self._append_metrics({"epoch": number, **self._training_figures(), **metrics, "best": better})
        self.state = self.state.but(
            position=self.loader.state_dict(), epoch_loss=0.0, epoch_states=0, metrics_bytes=size
        )
        self.state = self.state.but(finished=self._reason_to_stop())
        self._write_resume_point()

    @property
    def _best_share(self) -> float:
        return self.state.best_metrics.get("validation_share_of_headroom", float("-inf"))

    def _training_figures(self) -> dict[str, Any]:
        return {
            "batches": self.state.batches,
            "loss": self.state.epoch_loss / max(self.state.epoch_states, 1),
            "learning_rate": self.learner.learning_rate(max(self.state.batches - 1, 0)),
            "seconds": round(self._seconds, 1),
        }

    def _reason_to_stop(self) -> str:
        done = self.state.epoch
        if done >= self.config.epochs:
            return "epochs"
        if done - self.state.best_epoch > self.config.patience:
            return "patience"
        limit = self.config.max_minutes
        return "max_minutes" if limit is not None and self._seconds >= 60 * limit else ""

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _report(self) -> None:
        best = f", best share {self._best_share:.1%}" if self.state.best_metrics else ""
        loss = self.state.epoch_loss / max(self.state.epoch_states, 1)
        note = f"epoch {self.state.epoch + 1}, loss {loss:.4f}{best}"
        self._tell(ProgressEvent("training", self.state.batches, self.learner.batches, note, "batches"))

    def _append_metrics(self, row: dict[str, Any]) -> int:
        """Add a line and return the file's length."""
        return append_bytes(self.folder / METRICS_NAME, json.dumps(row, allow_nan=False).encode("ascii") + b"\n")

    def _write_resume_point(self) -> None:
        self.state = self.state.but(position=self.loader.state_dict(), seconds=self._seconds)
        groups = {**self.learner.groups(), "best": self.best}
        ResumePoint(self._identity(), self.state, groups).write(self.folder / RESUME_NAME)

    def _identity(self) -> RunIdentity:
        return RunIdentity(
            config=self.config.hashable(),
            stores=self.data.versions,
            scenes=[*self.data.train_scenes, *self.data.judged_scenes],
        )

    def _card(self) -> PolicyCard:
        observation = self.config.observation
        return PolicyCard(
            head=self.config.head,
            score_scale=self.data.scale,
            observation=observation,
            observation_layout=observation.layout_hash,
            observation_arrays=observed_arrays(),
            network=self.config.network,
            candidates=self.data.width,
            parameters=parameter_count(self.best),
            training_config_hash=self.config.config_hash,
            stores=tuple(self.data.versions),
            scenes=tuple(self.data.train_scenes),
            validation_scenes=tuple(self.data.judged_scenes),
            metrics=self.state.best_metrics,
            training=self.config.hashable(),
        )

    def _publish(self) -> TrainingResult:
        checkpoint = self.folder / POLICY_NAME
        save_checkpoint(checkpoint, self._card(), self.best)
        result = TrainingResult(
            folder=self.folder,
            checkpoint=checkpoint,
            checkpoint_sha256=file_sha256(checkpoint),
            epochs=self.state.epoch,
            best_epoch=self.state.best_epoch,
            stopped_by=self.state.finished,
            seconds=self.state.seconds,
            validation=self.state.best_metrics,
        )
        publish_json(self.folder / SUMMARY_NAME, self._summary(result))
        return result

    def _summary(self, result: TrainingResult) -> dict[str, Any]:
        return {
            "config": self.config.model_dump(mode="json"),
            "config_hash": self.config.config_hash,
            "stores": self.data.versions,
            "scenes": self.data.train_scenes,
            "validation_scenes": self.data.judged_scenes,
            "states": {"train": self.data.states, "validation": self.data.validation_states},
            "parameters": parameter_count(self.best),
            "checkpoint_sha256": result.checkpoint_sha256,
            "epochs": result.epochs,
            "best_epoch": result.best_epoch,
            "stopped_by": result.stopped_by,
            "seconds": result.seconds,
            "validation": result.validation,
        }
