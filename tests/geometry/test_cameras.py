import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_assets.errors import GeometryError
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import IDENTITY_POSE, inverse, look_along, transform
from tests.support.refusals import refused

pytestmark = pytest.mark.quick

CAMERA = PinholeCamera(fx_px=100, fy_px=110, cx_px=32, cy_px=24, height_px=48, width_px=64)


def test_axes_follow_left_up_forward():
    pixels, depth = CAMERA.project([[0, 0, 2], [1, 0, 2], [0, 1, 2], [0, 0, -1]])
    assert pixels[0].tolist() == [32, 24]
    assert pixels[1].tolist() == [32 - 50, 24]  # left of the axis is left in the image
    assert pixels[2].tolist() == [32, 24 - 55]  # up is up
    assert np.isnan(pixels[3]).all()
    assert depth.tolist() == [2, 2, 2, -1]


def test_directions_meet_pixel_centres():
    pixels, _ = CAMERA.project(CAMERA.pixel_directions().reshape(-1, 3) * 3.7)
    expected = np.stack(np.meshgrid(np.arange(64) + 0.5, np.arange(48) + 0.5), axis=-1).reshape(-1, 2)
    assert np.abs(pixels - expected).max() < 1e-4
    assert (pixels > 0).all() and (pixels < (64, 48)).all()


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_unprojecting_undoes_projecting(seed):
    rng = np.random.default_rng(seed)
    pose = look_along(rng.uniform(-2, 2, 3), rng.normal(size=3))
    depth = rng.uniform(0.5, 5, (48, 64)).astype(np.float32)
    points = CAMERA.unproject(depth, pose)
    pixels, again = CAMERA.project(transform(inverse(pose), points.reshape(-1, 3)))
    assert np.abs(again - depth.reshape(-1)).max() < 1e-4
    assert np.abs(pixels.reshape(48, 64, 2)[0, 0] - 0.5).max() < 1e-2


def test_resizing_keeps_the_field_of_view():
    small = CAMERA.resized(12, 16)
    corner = CAMERA.project([[0.3, 0.2, 1.0]])[0] / 4
    assert np.allclose(small.project([[0.3, 0.2, 1.0]])[0], corner)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fx_px", 0.0),
        ("fy_px", float("nan")),
        ("cx_px", float("inf")),
        ("height_px", -3),
        ("width_px", 0),
    ],
)
def test_bad_intrinsics_are_refused_with_their_value(name, value):
    good = {"fx_px": 1.0, "fy_px": 1.0, "cx_px": 0.0, "cy_px": 0.0, "height_px": 4, "width_px": 4}
    with refused(GeometryError, name, f"got {value}"):
        PinholeCamera(**(good | {name: value}))


def test_depth_of_the_wrong_size_is_refused():
    with refused(GeometryError, "48 x 64"):
        CAMERA.unproject(np.ones((2, 2)), IDENTITY_POSE)
