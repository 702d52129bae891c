"""A kernel that may round otherwise on a GPU: what ``test_ptx`` must notice."""

# mypy: ignore-errors

import warp as wp

wp.set_module_options({"enable_backward": False, "fuse_fp": True})


@wp.kernel
def scaled(a: wp.array(dtype=float), b: wp.array(dtype=float)):
    i = wp.tid()
    b[i] = a[i] * b[i] + wp.sqrt(a[i])
