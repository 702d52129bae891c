"""Devices: threads that share one."""

import subprocess
import sys

import pytest

FIRST_USES = """
import sys, threading
import numpy as np
from rollout_assets.geometry.devices import full_warp, to_torch, vectors
import warp as wp

sys.setswitchinterval(1e-6)
array = full_warp(4, 1.0, wp.float32, "cpu")
assert "torch" not in sys.modules
failed, done = [], threading.Event()

def import_torch():
    to_torch(array)
    done.set()

def use():
    while not done.is_set():
        try:
            vectors(np.zeros((2, 3)), "points", "cpu")
        except Exception as error:
            failed.append(repr(error))
            return

threads = [threading.Thread(target=work) for work in (import_torch, import_torch, use, use)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(failed)
"""


@pytest.mark.ci
def test_threads_use_a_device_while_another_imports_torch():
    done = subprocess.run([sys.executable, "-c", FIRST_USES], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
