"""Why a rollout ended, derived from its chains: the cases that a real oracle reaches only by luck."""

from rollout_assets.config import RolloutRecipeConfig
from rollout_assets.errors import ConfigError
from rollout_assets.rollouts.engine import Chain, expand
from rollout_assets.rollouts.keys import RolloutKey
from rollout_assets.rollouts.manager.endings import RolloutLimits, end_reason, offered_steps, taken_steps
from tests.rollouts.shells import DrawnStates
from tests.support.refusals import refused

KEY = RolloutKey(5, "sample", "target")


def recipe_of(**changes) -> RolloutRecipeConfig:
    return RolloutRecipeConfig(name="greedy", policy="oracle_greedy", horizon=3).model_copy(update=changes)


def grown(recipe: RolloutRecipeConfig, dead=None, depths=9) -> tuple[Chain, ...]:
    """Kept chains; after ``depths`` steps the driver sends no states."""
    states, rollout = DrawnStates(KEY, dead=dead), expand(recipe, KEY)
    paths = next(rollout)
    while True:
        try:
            paths = rollout.send({path: states(path) for path in paths} if depths > 0 else {})
        except StopIteration as stop:
            return stop.value
        depths -= 1


def test_every_end_has_its_reason():
    recipe = recipe_of()
    short = RolloutLimits(max_rollout_steps=2).applied(recipe)
    (whole,) = grown(recipe)
    assert end_reason((whole,), recipe, recipe) == "horizon"
    assert end_reason(grown(short), recipe, short) == "max_rollout_steps"
    assert end_reason(grown(recipe, depths=2), recipe, recipe) == "max_views_scored"
    assert end_reason(grown(recipe, depths=0), recipe, recipe) == "max_views_scored"
    assert end_reason(grown(recipe, dead=()), recipe, recipe) == "no_takeable_view"
    for path in (whole.path[:1], whole.path[:2]):
        assert end_reason(grown(recipe, dead=path), recipe, recipe) == "dead_end"
        assert end_reason(grown(recipe, dead=path, depths=len(path)), recipe, recipe) == "max_views_scored"
    assert end_reason(grown(short, dead=whole.path[:1]), recipe, short) == "dead_end"


def test_dead_end_is_a_step_without_a_selection():
    recipe = recipe_of()
    (whole,) = grown(recipe)
    (stuck,) = grown(recipe, dead=whole.path[:2])
    assert (len(offered_steps(stuck)), len(taken_steps(stuck))) == (3, 2)
    (nowhere,) = grown(recipe, dead=())
    assert offered_steps(nowhere) == () and taken_steps(nowhere) == []


def test_a_limit_that_cut_any_kept_chain_cut_the_rollout():
    recipe = recipe_of(branch=2, beam_width=4)
    short = RolloutLimits(max_rollout_steps=2).applied(recipe)
    first, *_ = grown(recipe_of(horizon=1))
    chains = grown(short, dead=first.path)
    assert {chain.dead_end for chain in chains} == {True, False}
    assert end_reason(chains, recipe, short) == "max_rollout_steps"
    assert end_reason(chains, short, short) == "horizon"


def test_limits_are_checked_and_the_smaller_one_counts():
    both = RolloutLimits(3, None).tightened(RolloutLimits(5, 40))
    assert (both.max_rollout_steps, both.max_views_scored) == (3, 40)
    assert RolloutLimits(9).applied(recipe_of()).horizon == 3
    with refused(ConfigError, "max_views_scored", 0):
        RolloutLimits(max_views_scored=0)
