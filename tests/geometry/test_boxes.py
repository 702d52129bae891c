import numpy as np
import pytest

from rollout_assets.errors import GeometryError
from rollout_assets.geometry import boxes, poses
from rollout_assets.geometry.boxes import OrientedBoxes
from tests.support.refusals import refused

pytestmark = pytest.mark.quick


def turned_boxes(rng: np.random.Generator, n: int) -> OrientedBoxes:
    turns, _ = np.linalg.qr(rng.normal(size=(n, 3, 3)))
    turns[np.linalg.det(turns) < 0, :, 0] *= -1
    pose = poses.make_pose(turns, rng.uniform(-0.5, 0.5, (n, 3)))
    return OrientedBoxes(pose, rng.uniform(0.3, 1.5, (n, 3)).astype(np.float32))


def box(centre=(0, 0, 0), extents=(1, 1, 1), yaw_deg=0.0) -> OrientedBoxes:
    c, s = np.cos(np.radians(yaw_deg)), np.sin(np.radians(yaw_deg))
    pose = poses.make_pose([[[c, -s, 0], [s, c, 0], [0, 0, 1]]], [centre])
    return OrientedBoxes(pose, np.array([extents], np.float32))


@pytest.mark.parametrize(
    ("a", "b", "iou"),
    [
        (box(), box(), 1.0),
        (box(), box(centre=(0.5, 0, 0)), 1 / 3),
        (box(), box(centre=(1, 0, 0)), 0.0),
        (box(), box(centre=(1.5, 0, 0)), 0.0),
        (box(), box(extents=(0.5, 0.5, 0.5)), 0.125),
        (box(extents=(2, 2, 2)), box(centre=(0.5, 0.5, 0.5)), 0.125),
        (box(), box(yaw_deg=90), 1.0),
        # two unit squares at 45 degrees share a regular octagon of area 2 (sqrt 2 - 1)
        (box(), box(yaw_deg=45), 2 * (2**0.5 - 1) / (2 - 2 * (2**0.5 - 1))),
        # a thin long bar through the middle, turned: |sec 30| longer inside
        (
            box(extents=(1, 1, 1)),
            box(extents=(4, 0.01, 1), yaw_deg=30),
            (0.01 / np.cos(np.pi / 6)) / (1 + 0.04 - 0.01 / np.cos(np.pi / 6)),
        ),
    ],
)
def test_iou_of_known_pairs(a, b, iou):
    assert boxes.oriented_iou(a, b)[0] == pytest.approx(iou, abs=1e-6)
    assert boxes.oriented_iou(b, a)[0] == pytest.approx(iou, abs=1e-6)


def test_iou_agrees_with_sampling_on_random_pairs():
    rng = np.random.default_rng(5)
    a, b = turned_boxes(rng, 200), turned_boxes(rng, 200)
    exact = boxes.oriented_iou(a, b)
    sampled = boxes.sampled_iou(a, b, 60_000, rng)
    assert (exact > 0.05).mean() > 0.5  # the pairs do overlap
    assert np.abs(exact - sampled).max() < 1e-2


def test_iou_does_not_depend_on_where_the_world_origin_is():
    rng = np.random.default_rng(6)
    a, b = turned_boxes(rng, 50), turned_boxes(rng, 50)
    shift = np.zeros((50, 12), np.float32)
    shift[:, 9:] = [256.0, -128.0, 64.0]
    far_a = OrientedBoxes(a.pose_world_object + shift, a.extents_m)
    far_b = OrientedBoxes(b.pose_world_object + shift, b.extents_m)
    assert np.abs(boxes.oriented_iou(a, b) - boxes.oriented_iou(far_a, far_b)).max() < 1e-3


def test_iou_of_a_box_with_itself_and_symmetry():
    rng = np.random.default_rng(7)
    a, b = turned_boxes(rng, 300), turned_boxes(rng, 300)
    assert boxes.oriented_iou(a, a) == pytest.approx(np.ones(300), abs=1e-6)
    assert boxes.oriented_iou(a, b) == pytest.approx(boxes.oriented_iou(b, a), abs=1e-7)


def test_boxes_without_extent_share_nothing():
    assert boxes.oriented_iou(box(extents=(1, 1, 0)), box()).tolist() == [0.0]


def test_pairwise_covers_every_pair():
    rng = np.random.default_rng(8)
    a, b = turned_boxes(rng, 3), turned_boxes(rng, 4)
    table = boxes.pairwise_iou(a, b)
    assert table.shape == (3, 4)
    assert table[2, 1] == boxes.oriented_iou(a[2:3], b[1:2])[0]
    assert boxes.pairwise_iou(a[:0], b).shape == (0, 4)
    assert boxes.pairwise_iou(a, b[:0]).shape == (3, 0)


def test_containment_is_strict_and_follows_the_pose():
    turned = box(centre=(1, 2, 3), extents=(2, 4, 6), yaw_deg=90)
    on_face = [1, 2 + 1, 3]  # the box's x axis points along world y
    assert turned.contains([[1, 2, 3], [1, 2.99, 3], on_face, [2.9, 2, 3], [3.1, 2, 3]]).tolist() == [
        [True, True, False, True, False]
    ]
    assert turned.contains([on_face], margin_m=0.05).tolist() == [[True]]


def test_corners_lie_on_the_border_of_their_box():
    rng = np.random.default_rng(9)
    many = turned_boxes(rng, 20)
    for i in range(20):
        centre = many.centers_world[i]
        corners = many.corners_world()[i]
        assert many[i : i + 1].contains(centre + 0.999 * (corners - centre)).all()
        assert not many[i : i + 1].contains(centre + 1.001 * (corners - centre)).any()


def test_unpacking_recentres_on_the_box_and_moves_to_the_world():
    packed = np.full((1, boxes.BOX_WIDTH), -1, np.float32)
    packed[0, boxes.BB3] = [0, 2, -1, 1, 1, 2]
    packed[0, boxes.POSE] = poses.make_pose(np.eye(3), [10, 0, 0])
    unpacked = boxes.unpack_boxes(packed, poses.make_pose(np.eye(3), [0, 5, 0]))
    assert unpacked.centers_world.tolist() == [[11, 5, 1.5]]
    assert unpacked.extents_m.tolist() == [[2, 2, 1]]


def test_padding_is_minus_one_nan_or_zero_throughout():
    rows = np.stack([np.full(34, -1.0), np.full(34, np.nan), np.zeros(34), np.r_[np.zeros(33), 1.0], np.ones(34)])
    assert boxes.is_padding(rows).tolist() == [True, True, True, False, False]


def test_wrong_width_is_refused():
    with refused(GeometryError, "(n, 34)", "(2, 33)"):
        boxes.unpack_boxes(np.zeros((2, 33)), poses.IDENTITY_POSE)


def test_the_overlap_of_a_pair_has_the_same_bits_in_any_company():
    rng = np.random.default_rng(7)
    a, b = turned_boxes(rng, 60), turned_boxes(rng, 60)
    alone = np.concatenate([boxes.oriented_iou(a[i : i + 1], b[i : i + 1]) for i in range(60)])
    assert boxes.oriented_iou(a, b).tobytes() == alone.tobytes()
