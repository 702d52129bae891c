"""What ``bench`` measures is named by its place, and loaded when it is asked for."""

import inspect
import re
from importlib import import_module

from rollout_assets.commands import bench


def test_every_benchmark_that_is_loaded_on_first_use_is_there():
    places = re.findall(r'_run\("([\w.]+)"', inspect.getsource(bench))
    assert len(places) > 10
    for place in places:
        module, _, function = place.rpartition(".")
        assert callable(getattr(import_module(f"rollout_assets.benchmarks.{module}"), function)), place
