"""`rollout-assets demo`: the whole thing on a small synthetic source."""

from __future__ import annotations

from rollout_assets.commands.source import show_store
from rollout_assets.commands.terminal import AsJson, CampaignOption, out, progress_bars
from rollout_assets.config import DEMO_CAMPAIGN, load_campaign

DEMO_SCENES = 8
DEMO_SNIPPETS = 2


def demo(campaign: CampaignOption = DEMO_CAMPAIGN, as_json: AsJson = False) -> None:
    """Build the demo's synthetic source, unless it is there, and show what it holds."""
    from rollout_assets.sources.synthetic.config import SyntheticConfig
    from rollout_assets.sources.synthetic.store import build_synthetic_store
    from rollout_assets.sources.vin_store import VinOfflineStore

    config = load_campaign(campaign)
    store_dir = config.source.store_dir
    if not (store_dir / "manifest.json").exists():
        synthetic = SyntheticConfig(scenes=DEMO_SCENES, snippets_per_scene=DEMO_SNIPPETS, seed=config.seed)
        with progress_bars() as progress:
            build_synthetic_store(store_dir, synthetic, progress)
    elif not as_json:
        out.print(f"using the source that is already at {store_dir}", highlight=False, soft_wrap=True)
    show_store(VinOfflineStore.open(store_dir, config.source.mesh_dirs), as_json)
