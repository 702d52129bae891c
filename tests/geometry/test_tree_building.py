"""The native builder against the kernel and the NumPy code that it replaced, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import trimesh
import warp as wp
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_assets.geometry import bvh_build_kernels, triangle_bvh
from rollout_assets.geometry.devices import empty_warp, on_host, run_on_host

pytestmark = pytest.mark.quick


def slow_records(points: np.ndarray, triangles: np.ndarray) -> np.ndarray:
    corners = points[triangles].astype(np.float64)
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    length = np.linalg.norm(normal, axis=1, keepdims=True)
    unit = normal / np.where(length > 0, length, 1.0)
    return np.concatenate([corners, unit[:, None]], axis=1).astype(np.float32)


def slow_cut(pieces: np.ndarray, owner: np.ndarray, limit: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    done, done_owner = [], []
    while len(pieces):
        lengths = np.square(pieces - pieces[:, [1, 2, 0]]).sum(axis=2)
        small = lengths.max(axis=1) <= limit * limit
        done.append(pieces[small])
        done_owner.append(owner[small])
        pieces, owner, lengths = pieces[~small], owner[~small], lengths[~small]
        turn = (lengths.argmax(axis=1)[:, None] + np.arange(3)) % 3
        a, b, c = np.moveaxis(np.take_along_axis(pieces, turn[..., None], axis=1), 1, 0)
        middle = (a + b) * 0.5
        pieces = np.concatenate([np.stack([a, middle, c], axis=1), np.stack([middle, b, c], axis=1)])
        owner = np.concatenate([owner, owner])
    cut = np.concatenate(done)
    return cut.min(axis=1).astype(np.float32), cut.max(axis=1).astype(np.float32), np.concatenate(done_owner)


def slow_build(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    order, room = np.arange(len(low), dtype=np.int32), len(low) // 2 + 1
    boxes, children = empty_warp((room, 6), wp.vec4, "cpu"), empty_warp(room, wp.vec4i, "cpu")
    used = empty_warp(1, wp.int32, "cpu")
    given = [on_host(low.copy(), wp.vec3), on_host(high.copy(), wp.vec3), on_host(order, wp.int32)]
    run_on_host(bvh_build_kernels.build_tree, 1, [*given, boxes, children, used])
    nodes = int(used.numpy()[0])
    return boxes.numpy()[:nodes], children.numpy()[:nodes], order


def soup(seed: int, count: int, size: float, rounded: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    corners = rng.normal(0, 1, (count, 1, 3)) + rng.normal(0, size, (count, 3, 3))
    points = (np.round(corners * 4) / 4 if rounded else corners).reshape(-1, 3).astype(np.float32)
    return points, np.arange(3 * count, dtype=np.int32).reshape(-1, 3)


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 400), st.sampled_from([0.0, 0.02, 2.0]), st.booleans())
def test_the_tree_is_that_of_the_slow_builder(seed: int, count: int, size: float, rounded: bool) -> None:
    points, triangles = soup(seed, count, size, rounded)
    tree = triangle_bvh.build_tree(points, triangles)
    references, edge, records = triangle_bvh._described(points, triangles)
    assert np.array_equal(records, slow_records(points, triangles))
    corners = points[triangles]
    assert np.array_equal(references[:, :3], corners.min(axis=1))
    assert np.array_equal(references[:, 4:7], corners.max(axis=1))
    low, high, owner = references[:, :3], references[:, 4:7], np.arange(count, dtype=np.int32)
    limit = triangle_bvh._edge_limit(edge, *tree.bounds)
    large = edge > limit
    if large.any():
        cut = slow_cut(corners[large].astype(np.float64), owner[large], limit)
        low, high = np.concatenate([low[~large], cut[0]]), np.concatenate([high[~large], cut[1]])
        owner = np.concatenate([owner[~large], cut[2]])
    slack = np.float32(triangle_bvh.BOX_SLACK * max(np.abs(low).max(), np.abs(high).max()))
    boxes, children, order = slow_build(low - slack, high + slack)
    assert np.array_equal(tree.boxes, boxes)
    assert np.array_equal(tree.children, children)
    assert np.array_equal(tree.slot_face, owner[order])
    assert np.array_equal(tree.corners, records[owner[order]])


@pytest.mark.parametrize("subdivisions", [0, 3])
def test_every_face_is_in_the_tree(subdivisions: int) -> None:
    mesh = trimesh.creation.icosphere(subdivisions=subdivisions)
    tree = triangle_bvh.build_tree(mesh.vertices.astype(np.float32), mesh.faces.astype(np.int32))
    assert set(tree.slot_face.tolist()) == set(range(len(mesh.faces)))
    assert np.array_equal(tree.bounds[0], mesh.vertices.astype(np.float32).min(axis=0))


def test_cutting_makes_room_for_itself() -> None:
    pieces = np.array([[[0, 0, 0], [8, 0, 0], [0, 8, 0]]], np.float64)
    owner = np.array([5], np.int32)
    for fast, slow in zip(triangle_bvh._cut(pieces, owner, 0.05, 16), slow_cut(pieces, owner, 0.05), strict=True):
        assert np.array_equal(fast, slow)
