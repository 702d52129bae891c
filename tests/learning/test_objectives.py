"""Losses and measures of choice with answers that can be worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from rollout_assets.config.training import LossConfig
from rollout_assets.learning.training.choices import Choices, mean_ranks, rank_correlations
from rollout_assets.learning.training.objectives import (
    GainLabels,
    centred,
    double_q,
    gain_loss,
    q_loss,
    rank_loss,
    value_loss,
)

GAIN = torch.tensor([[0.0, 2.0, 4.0, 9.0], [1.0, 1.0, 1.0, 9.0]])
MASK = torch.tensor([[True, True, True, False], [True, True, False, False]])
LABELS = GainLabels(torch.where(MASK, GAIN, 0.0), MASK)


def test_gains_are_compared_with_their_states_mean() -> None:
    assert centred(GAIN, MASK).tolist() == [[-2.0, 0.0, 2.0, 0.0], [0.0] * 4]
    shifted = GAIN + torch.tensor([[100.0], [-7.0]])
    assert gain_loss(shifted, LABELS, LossConfig()).item() == pytest.approx(0.0, abs=1e-4)


def test_value_loss_by_hand() -> None:
    predicted = torch.zeros_like(GAIN)
    # state 0: errors 2, 0, 2 -> Huber with delta 10 is half their squares; state 1 has none
    assert value_loss(predicted, LABELS, huber=10.0).item() == pytest.approx((2 + 0 + 2) / 3 / 2)
    assert value_loss(predicted, LABELS, huber=1.0).item() == pytest.approx((1.5 + 0 + 1.5) / 3 / 2)


def test_rank_loss_prefers_the_true_order_and_ignores_what_is_masked() -> None:
    right, wrong = torch.tensor([[0.0, 2.0, 4.0, -50.0]]), torch.tensor([[4.0, 2.0, 0.0, 50.0]])
    labels = GainLabels(LABELS.gain[:1], MASK[:1])
    assert rank_loss(right, labels, 1.0).item() == pytest.approx(0.0, abs=1e-6)
    assert rank_loss(wrong, labels, 1.0).item() > 1.0
    other = right.clone()
    other[0, 3] = 1e6
    assert rank_loss(other, labels, 1.0).item() == pytest.approx(0.0, abs=1e-6)


def test_a_state_without_labels_adds_nothing_and_keeps_gradients_finite() -> None:
    predicted = torch.randn(2, 4, requires_grad=True)
    none = GainLabels(torch.zeros(2, 4), torch.zeros(2, 4, dtype=torch.bool))
    loss = gain_loss(predicted, none, LossConfig())
    loss.backward()
    assert loss.item() == 0.0
    assert torch.isfinite(predicted.grad).all()


def test_double_q_chooses_with_one_network_and_values_with_the_other() -> None:
    online, target = torch.tensor([[1.0, 5.0, 9.0], [1.0, 2.0, 3.0]]), torch.tensor([[10.0, 20.0, 30.0], [7.0] * 3])
    mask = torch.tensor([[True, True, False], [False, False, False]])
    assert double_q(online, target, mask).tolist() == [20.0, 0.0]


@dataclass
class FakeBatch:
    """The columns that ``q_loss`` reads."""

    selected_candidate_index: Tensor
    td_reward: Tensor
    td_discount: Tensor


def test_q_loss_by_hand() -> None:
    batch = FakeBatch(torch.tensor([1, -1]), torch.tensor([3.0, torch.nan]), torch.tensor([0.5, 0.0]))
    q = torch.tensor([[0.0, 4.0, 0.0, 0.0], [1.0, 2.0, 0.0, 0.0]])
    last = torch.tensor([False, True])
    # state 0: 4 against 3 + 0.5 * 4 = 5; state 1 took nothing, but all its labels (1, 1) are its returns
    loss = q_loss(q, batch, LABELS, last, torch.tensor([4.0, 99.0]), scale=1.0, huber=10.0)  # type: ignore[arg-type]
    assert loss.item() == pytest.approx(0.5 * 1.0 + (0.0 + 0.5 * 1.0 / 2) / 2)


def test_quality_of_choices_by_hand() -> None:
    gain = np.array([[0.0, 1.0, 2.0], [0.0, 4.0, 100.0], [5.0, 0.0, 0.0]])
    mask = np.array([[True, True, True], [True, True, False], [False, False, False]])
    scores = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 9.0], [0.0, 0.0, 0.0]])
    choices = Choices()
    for row in range(3):
        at = slice(row, row + 1)
        choices.add(scores[at], gain[at], mask[at], np.array([row == 0]))
    quality = choices.quality()
    # state 0 takes its best: 2, mean 1; state 1 its worst: 0, mean 2, best 4; state 2 has no label
    assert quality.states == 2
    assert (quality.gain, quality.regret) == (1.0, 2.0)
    assert quality.share_of_headroom == pytest.approx(((2 - 1) + (0 - 2)) / ((2 - 1) + (4 - 2)))
    assert quality.first_share == 1.0
    assert quality.rank_correlation == pytest.approx((1.0 - 1.0) / 2)


def test_nothing_judged_is_zero() -> None:
    assert Choices().quality().share_of_headroom == 0.0


def test_ranks_of_equal_values_are_shared() -> None:
    assert mean_ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [2.5, 0.0, 2.5, 1.0]
    equal = rank_correlations(np.zeros((1, 3)), np.array([[1.0, 2.0, 3.0]]), np.ones((1, 3), bool))
    assert np.isnan(equal).all()
