"""A network that learns batch by batch: loss, gradient, learning rate, and the target network of Q-learning."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from rollout_assets.config.training import TrainingConfig
from rollout_assets.errors import DeviceError, TrainingError
from rollout_assets.learning import network as network_module
from rollout_assets.learning.batch import QHBatch
from rollout_assets.learning.network import ViewNetwork, ViewValues
from rollout_assets.learning.training.objectives import GainLabels, double_q, gain_loss, q_loss
from rollout_assets.learning.training.resume import Tensors, load_optimizer, optimizer_tensors
from rollout_assets.observations.observation import Observations
from rollout_assets.randomness import key_digest


def observed(batch: QHBatch) -> Observations[Tensor]:
    """What the actor knew at a batch's states."""
    if batch.observations is None:
        raise TrainingError("a batch has no observations; open its dataset with observations=…")
    return batch.observations


def observed_next(batch: QHBatch) -> Observations[Tensor]:
    """What the actor knew at the states after a batch's; where there is none, no view can be taken."""
    if batch.next_observations is None:
        raise TrainingError("a batch has no observations of the states after it; Q-learning needs them")
    return batch.next_observations


def torch_device(name: str) -> torch.device:
    """The device of a name; ``auto`` is the GPU where there is one."""
    available = torch.cuda.is_available()
    if name.startswith("cuda") and not available:
        raise DeviceError(f'device {name}: torch finds no CUDA device; use device = "cpu"')
    return torch.device(("cuda" if available else "cpu") if name == "auto" else name)


class Learner:
    """The network of a training and its optimizer. ``batches`` is how many there will be at most, for the schedule.

    What is random in a batch, dropout and augmentation, follows from the seed and the batch's number.
    """

    def __init__(self, config: TrainingConfig, scale: float, batches: int) -> None:
        self.config = config
        self.scale = scale
        self.batches = batches
        self.device = torch_device(config.device)
        torch.manual_seed(_seed(config.seed, "weights"))
        self.network = ViewNetwork(config.network).to(self.device)
        self.target = copy.deepcopy(self.network).eval().requires_grad_(False) if config.head == "q" else None
        self.optimizer = torch.optim.AdamW(
            _parameter_groups(self.network, config.optimizer.weight_decay), foreach=False
        )

    def learn(self, batch: QHBatch, number: int) -> float:
        """One step on the batch of this number, counted from the run's beginning; returns the loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(number)
        torch.manual_seed(_seed(self.config.seed, f"batch {number}"))
        self.network.train()
        loss = self._loss(batch.to(self.device))
        value = float(loss.detach())
        if not math.isfinite(value):
            raise TrainingError(f"the loss of batch {number} is {value}; try a smaller optimizer.learning_rate")
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.network.parameters(), self.config.optimizer.max_gradient_norm)
        self.optimizer.step()
        self._follow()
        return value

    @torch.no_grad()
    def predict(self, batch: QHBatch) -> ViewValues:
        """The values of a batch's views, without dropout."""
        self.network.eval()
        return self.network(observed(batch.to(self.device)))

    def learning_rate(self, number: int) -> float:
        """The learning rate of a batch: linear up, then half a cosine down."""
        options = self.config.optimizer
        warmup = max(options.warmup_share * self.batches, 1.0)
        if number < warmup:
            return options.learning_rate * (number + 1) / (warmup + 1)
        done = min((number - warmup) / max(self.batches - warmup, 1.0), 1.0)
        share = options.final_share + (1 - options.final_share) * 0.5 * (1 + math.cos(math.pi * done))
        return options.learning_rate * share

    def weights(self) -> Tensors:
        """A copy of the network's weights, on the CPU."""
        return {name: value.detach().cpu().clone() for name, value in self.network.state_dict().items()}

    def groups(self) -> dict[str, Tensors]:
        """Everything that changes while learning."""
        target = {} if self.target is None else {"target": dict(self.target.state_dict())}
        optimizer = optimizer_tensors(self.optimizer)
        return {"weights": dict(self.network.state_dict()), "optimizer": optimizer, **target}

    def load(self, groups: dict[str, Tensors]) -> None:
        """Put back what ``groups`` gave."""
        self.network.load_state_dict(groups["weights"])
        load_optimizer(self.optimizer, groups.get("optimizer", {}))
        if self.target is not None:
            self.target.load_state_dict(groups["target"])

    def _loss(self, batch: QHBatch) -> Tensor:
        labels, observations = GainLabels.of(batch, self.scale), observed(batch)
        values: ViewValues = self.network(self._augmented(observations))
        loss = gain_loss(values.gain, labels, self.config.loss)
        if self.target is None:
            return loss
        following, last = self._next_return(batch, self.target), observations.steps_left == 1
        return loss + q_loss(values.q, batch, labels, last, following, self.scale, self.config.loss.huber)

    @torch.no_grad()
    def _next_return(self, batch: QHBatch, target: ViewNetwork) -> Tensor:
        following = observed_next(batch)
        online = self.network.eval()(following).q
        self.network.train()
        return double_q(online, target(following).q, following.candidate_mask)

    def _augmented(self, observations: Observations[Tensor]) -> Observations[Tensor]:
        """The observations, or another form of them that is worth the same, where the network file has such."""
        augment = getattr(network_module, "augmented", None)
        return observations if augment is None or not self.config.augment else augment(observations)

    def _follow(self) -> None:
        """Let the target network follow by a small step."""
        if self.target is None:
            return
        with torch.no_grad():
            for own, new in zip(self.target.parameters(), self.network.parameters(), strict=True):
                own.lerp_(new, self.config.loss.target_rate)


def _parameter_groups(network: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Matrices decay; biases, norms and other vectors do not."""
    parameters = list(network.parameters())
    return [
        {"params": [own for own in parameters if own.ndim > 1], "weight_decay": weight_decay},
        {"params": [own for own in parameters if own.ndim <= 1], "weight_decay": 0.0},
    ]


def _seed(seed: int, what: str) -> int:
    return int.from_bytes(key_digest(seed, "training", what)[:8], "little") >> 1
