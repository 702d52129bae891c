"""The campaigns of an evaluation: the base campaign with the contestants as its recipes, one per seed.

What a state offers follows from root, seed and path, never from the recipe. So all contestants start from the same
views, and a campaign of all of them scores every state that two of them reach only once.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollout_assets.campaigns.plan import open_source
from rollout_assets.config import CampaignConfig, SceneLists, Split, SplitConfig
from rollout_assets.errors import ConfigError
from rollout_assets.evaluation.config import EvaluationConfig
from rollout_assets.evaluation.roster import Contestant

_HASH_CHARACTERS = 12
_NAME_CHARACTERS = 48


def evaluated_scenes(config: EvaluationConfig, base: CampaignConfig) -> tuple[str, ...]:
    """The scenes that are evaluated, in the order of the source; none at all is a ``ConfigError``."""
    rows = open_source(base).rows(config.split)
    scenes = tuple(dict.fromkeys(row.scene_id for row in rows))
    if not scenes:
        raise ConfigError(f"{base.source.store_dir}: no source rows in split {config.split}; nothing to evaluate")
    return scenes[: config.limit]


def evaluation_campaigns(
    config: EvaluationConfig, base: CampaignConfig, contestants: Sequence[Contestant], scenes: Sequence[str]
) -> tuple[CampaignConfig, ...]:
    """One campaign per seed. Its folder is named by what decides its bytes, so that no evaluation disturbs another.

    Policies are shown depth of the size that the base campaign keeps, also when these stores keep none.
    """
    first = base.seed + 1 if config.first_seed is None else config.first_seed
    return tuple(_campaign(config, base, contestants, scenes, first + at) for at in range(config.seeds))


def _campaign(
    config: EvaluationConfig,
    base: CampaignConfig,
    contestants: Sequence[Contestant],
    scenes: Sequence[str],
    seed: int,
) -> CampaignConfig:
    derived = base.model_copy(
        update={
            "name": f"{base.name[:_NAME_CHARACTERS]}-evaluation",
            "seed": seed,
            "source": base.source.model_copy(update={"splits": (config.split,)}),
            "split": base.split if config.limit is None else _only(scenes, config.split),
            "selected_depth": base.selected_depth.model_copy(update={"enabled": config.keep_depth}),
            "recipes": tuple(recipe for contestant in contestants for recipe in contestant.recipes),
        }
    )
    folder = f"seed-{seed}-{derived.writer_config_hash[:_HASH_CHARACTERS]}"
    shards = base.shards.model_copy(
        update={
            "output_dir": (config.output_dir / "campaigns" / folder).absolute(),
            "rows_per_shard": config.rows_per_shard,
        }
    )
    return CampaignConfig.model_validate(derived.model_copy(update={"shards": shards}).model_dump())


def _only(scenes: Sequence[str], split: Split) -> SplitConfig:
    """These scenes in the split, every other one in the other split, which is not run."""
    other: Split = "train" if split == "val" else "val"
    return SplitConfig(mode="explicit", rest=other, scenes=SceneLists(**{split: tuple(scenes)}))
