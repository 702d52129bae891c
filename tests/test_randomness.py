"""Random streams are named: equal names give equal streams everywhere, other names give other streams."""

from __future__ import annotations

import pytest

from rollout_assets.randomness import key_digest, rng_for
from tests.support.refusals import refused

pytestmark = pytest.mark.quick


def test_known_draws_do_not_change() -> None:
    assert rng_for(7, "scene", (1, 2)).integers(0, 1_000_000, 4).tolist() == [15766, 938343, 20974, 742455]
    assert key_digest(7, "scene", (1, 2)).hex()[:16] == "73421b6b467d060f"


def test_every_part_of_a_name_matters() -> None:
    names = [(1, "a"), ("1", "a"), (1, "a", None), ("a", 1), (1, ("a",)), (1, "a", ()), (True, "a")]
    draws = {float(rng_for(*name).random()) for name in names}
    assert len(draws) == len(names)


def test_streams_do_not_share_state() -> None:
    first, second = rng_for("x"), rng_for("x")
    first.random(100)
    assert second.random() == rng_for("x").random()


def test_floats_that_have_no_canonical_form_are_refused() -> None:
    with refused(ValueError, "JSON"):
        rng_for(float("nan"))  # type: ignore[arg-type]
