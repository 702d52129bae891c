"""The modules of kernels that an oracle launches, to be compiled ahead of their first use.

Imports nothing heavy: a process that only starts another one to compile does not load Warp.
"""

from __future__ import annotations

HOST_KERNELS = ("geometry.bvh_build_native", "geometry.clipping_native")
KERNELS = ("oracle.view_kernels", "oracle.cloud_kernels", "geometry.bvh_query_kernels")
LANE_KERNELS = ("oracle.sample_lanes", "oracle.view_lanes")
"""Kernels for vector instructions, beside those that a GPU runs as well."""


def compile_kernels(device: str) -> None:
    """Compile what scoring on a device launches into Warp's cache, from where every process loads it."""
    from rollout_assets.geometry.devices import in_lanes, load_kernels, resolve_device

    device = resolve_device(device)
    load_kernels(HOST_KERNELS, "cpu")
    load_kernels(KERNELS, device)
    if in_lanes(device):
        load_kernels(LANE_KERNELS, device)
