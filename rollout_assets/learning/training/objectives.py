"""What training makes small: errors of predicted gains, of their order, and of returns by double Q-learning.

Gains are compared with the mean of their state, because which state is easy does not help to choose within it. All
values are in units of ``scale``, the spread of such gains in training.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from rollout_assets.config.training import LossConfig
from rollout_assets.learning.batch import QHBatch
from rollout_assets.learning.network import ViewValues

_FAR_BELOW = -1e9
"""Stands for minus infinity where 0 times it must not become NaN."""


@dataclass(frozen=True)
class GainLabels:
    """gain: (b, k) root gain in units of the spread, 0 where there is no label; mask: (b, k) where there is one."""

    gain: Tensor
    mask: Tensor

    @classmethod
    def of(cls, batch: QHBatch, scale: float) -> GainLabels:
        """The labels of a batch."""
        mask = batch.q_train_mask & torch.isfinite(batch.one_step_target_root_gain)
        return cls(torch.where(mask, batch.one_step_target_root_gain / scale, 0.0), mask)


def gain_loss(predicted: Tensor, labels: GainLabels, config: LossConfig) -> Tensor:
    """The loss of predicted gains (b, k): their values, and their order as far as it matters."""
    values = value_loss(predicted, labels, config.huber)
    return values + config.rank_weight * rank_loss(predicted, labels, config.temperature)


def value_loss(predicted: Tensor, labels: GainLabels, huber: float) -> Tensor:
    """Huber loss between predicted and true gains, both without their state's mean; every state counts the same."""
    error = centred(predicted, labels.mask) - centred(labels.gain, labels.mask)
    loss = functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=huber)
    return masked_mean(loss, labels.mask).mean()


def rank_loss(predicted: Tensor, labels: GainLabels, temperature: float) -> Tensor:
    """Cross-entropy between two softmax distributions over a state's views: by true and by predicted gain.

    Less the entropy of the former, so that 0 is the best. Orders of views that are worth about the same cost nothing.
    """
    truth = _log_softmax(labels.gain / temperature, labels.mask)
    own = _log_softmax(predicted / temperature, labels.mask)
    terms = torch.where(labels.mask, truth.exp() * (truth - own), 0.0)
    return terms.sum(dim=1).mean()


def q_loss(
    q: Tensor, batch: QHBatch, labels: GainLabels, last: Tensor, next_return: Tensor, scale: float, huber: float
) -> Tensor:
    """Huber loss of the return of the view taken, and of every view where none can follow.

    ``next_return``: (b,) what the state after is worth, see ``double_q``. ``last``: (b,) states with one step left,
    where a view's return is its gain, which is known for all of them.
    """
    taken = batch.selected_candidate_index.long().clamp(min=0)[:, None]
    reward = batch.td_reward / scale
    known = (batch.selected_candidate_index >= 0) & torch.isfinite(reward)
    target = torch.where(known, reward + batch.td_discount * next_return, 0.0)
    errors = functional.huber_loss(q.gather(1, taken)[:, 0], target, reduction="none", delta=huber)
    temporal = (errors * known).sum() / known.sum().clamp(min=1)
    final = functional.huber_loss(q, labels.gain, reduction="none", delta=huber)
    return temporal + masked_mean(final, labels.mask & last[:, None]).mean()


def double_q(online: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """(b,) value of states: of the view that the online network likes best, by the target network; 0 without a view.

    online, target: (b, k) returns; mask: (b, k) views that can be taken.
    """
    best = online.masked_fill(~mask, _FAR_BELOW).argmax(dim=1, keepdim=True)
    return torch.where(mask.any(dim=1), target.gather(1, best)[:, 0], 0.0)


def centred(values: Tensor, mask: Tensor) -> Tensor:
    """Values (b, k) without their row's mean over the mask; 0 outside of it."""
    return torch.where(mask, values - masked_mean(values, mask)[:, None], 0.0)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """(b,) mean of each row over the mask; 0 where it is empty."""
    return torch.where(mask, values, 0.0).sum(dim=1) / mask.sum(dim=1).clamp(min=1)


def _log_softmax(values: Tensor, mask: Tensor) -> Tensor:
    return torch.log_softmax(values.masked_fill(~mask, _FAR_BELOW), dim=1)


def head_of(values: ViewValues, head: str) -> Tensor:
    """(b, k) the values that choose: ``gain`` or ``q``."""
    chosen: Tensor = getattr(values, head)
    return chosen
