import colorsys
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance

from firstpage.data.augment import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Augment,
    _planned,
    _relative_sides,
    _resized_windows,
    _uniform,
    _windows,
)
from firstpage.data.pixel_batch import PixelBatch
from firstpage.errors import UserError

PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1 / 255,) * 3}  # the output is the pixel values themselves


def coordinates(batch, height, width):
    """Every pixel says where it is: red the row, green the column, blue the sample."""
    grid = torch.zeros(batch, height, width, 3, dtype=torch.uint8)
    grid[..., 0] = torch.arange(height)[:, None]
    grid[..., 1] = torch.arange(width)
    grid[..., 2] = torch.arange(batch)[:, None, None]
    return grid


def noise(batch, height, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (batch, height, width, 3), generator=generator, dtype=torch.uint8)


def windows(augment, pixels, seed, step):
    """The plan of a batch, and the window of each of its images."""
    plan = augment._plan(len(pixels), pixels.device, seed, step, 0)
    sizes = torch.tensor([pixels.shape[1:3]]).expand(len(pixels), 2).float()
    return plan, _windows(plan, sizes, augment).int().tolist()


def as_bytes(images):
    values = images.permute(0, 2, 3, 1)
    assert torch.allclose(values, values.round(), atol=1e-3)
    return values.round().to(torch.uint8)


def test_random_crop_and_flip_are_exact_pixels_as_pil_gives_them():
    images = as_bytes(Augment.train(size=48, **PLAIN)(coordinates(64, 60, 56), seed=3, step=5))
    tops, lefts, flips = set(), set(), 0
    for sample, image in enumerate(images):
        top, left = int(image[..., 0].min()), int(image[..., 1].min())
        flipped = bool(image[0, 0, 1] > image[0, -1, 1])
        whole = Image.fromarray(coordinates(64, 60, 56)[sample].numpy())
        expected = whole.crop((left, top, left + 48, top + 48))
        if flipped:
            expected = expected.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        assert np.array_equal(image, expected)
        tops.add(top)
        lefts.add(left)
        flips += flipped
    assert tops == set(range(13))
    assert lefts == set(range(9))
    assert 16 < flips < 48


def test_random_crop_reaches_every_place_equally_often():
    images = as_bytes(
        Augment.train(size=4, **PLAIN)(coordinates(250, 6, 8).repeat(40, 1, 1, 1), seed=0, step=0)
    )
    corners = images[..., 0].amin(dim=(1, 2)).long() * 5 + images[..., 1].amin(dim=(1, 2)).long()
    counts = torch.bincount(corners, minlength=15)
    assert counts.shape == (15,)
    assert (counts - 10_000 / 15).abs().max() < 5 * math.sqrt(10_000 / 15)


@pytest.mark.parametrize(("height", "width", "size"), [(256, 256, 227), (61, 50, 32), (9, 8, 3), (7, 7, 7)])
def test_center_crop_takes_the_middle(height, width, size):
    images = as_bytes(Augment.test(size=size, **PLAIN)(noise(3, height, width)))
    top, left = round((height - size) / 2), round((width - size) / 2)
    assert torch.equal(images, noise(3, height, width)[:, top : top + size, left : left + size])


def test_normalization():
    pixels = noise(2, 20, 20)
    expected = (pixels / 255 - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    torch.testing.assert_close(Augment.test(size=20)(pixels), expected.permute(0, 3, 1, 2), atol=1e-5, rtol=0)


def naive_box(areas, shapes, place, height, width, scale, ratio):
    """torchvision's rule for one sample, from the same uniform draws."""
    for u, v in zip(areas, shapes, strict=True):
        area = height * width * (scale[0] + u * (scale[1] - scale[0]))
        shape = math.exp(math.log(ratio[0]) + v * (math.log(ratio[1]) - math.log(ratio[0])))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            return [int(place[0] * (height - h + 1)), int(place[1] * (width - w + 1)), h, w]
    if width / height < ratio[0]:
        h, w = round(width / ratio[0]), width
    elif width / height > ratio[1]:
        h, w = height, round(height * ratio[1])
    else:
        h, w = height, width
    return [(height - h) // 2, (width - w) // 2, h, w]


@pytest.mark.parametrize(
    ("height", "width", "scale", "ratio"),
    [
        (256, 256, (0.16, 1.0), (3 / 4, 4 / 3)),
        (64, 48, (0.08, 1.0), (3 / 4, 4 / 3)),
        (300, 40, (0.9, 1.0), (3 / 4, 4 / 3)),  # no try fits: the fallback
        (40, 300, (0.9, 1.0), (3 / 4, 4 / 3)),
        (50, 60, (1.0, 1.0), (1.0, 1.0)),
        (50, 60, (0.99, 1.0), (0.5, 2.0)),  # some fit at once, some after tries, some never
    ],
)
def test_windows_of_resized_crops_follow_the_rule(height, width, scale, ratio):
    draws = _uniform(1, 2, 500)
    tries = draws[:, 7:].reshape(500, 2, 10)
    sides = _relative_sides(tries, scale, ratio)
    sizes = torch.tensor([[height, width]], dtype=torch.float64).expand(500, 2)
    boxes = _resized_windows(sides, draws[:, :2], sizes, ratio).tolist()
    for box, (areas, shapes), place in zip(boxes, tries.tolist(), draws.tolist(), strict=True):
        assert box == naive_box(areas, shapes, place, height, width, scale, ratio)


@pytest.mark.parametrize(
    ("height", "width", "size"), [(64, 64, 56), (50, 70, 64), (40, 40, 90), (64, 64, 20)]
)
def test_resized_crop_equals_cutting_out_and_resizing_one_by_one(height, width, size):
    augment = Augment.train(size=size, crop="resized", **PLAIN)
    pixels = noise(12, height, width)
    images = augment(pixels, seed=1, step=2)
    plan, boxes = windows(augment, pixels, 1, 2)
    for sample in range(12):
        top, left, tall, wide = boxes[sample]
        window = pixels[sample, top : top + tall, left : left + wide].permute(2, 0, 1)[None].float()
        expected = F.interpolate(window, size=(size, size), mode="bilinear", align_corners=False)[0]
        if plan["flip"][sample]:
            expected = expected.flip(2)
        torch.testing.assert_close(images[sample], expected, atol=0.05, rtol=0)  # of 255, on pure noise


def test_resized_crop_agrees_with_pil_where_it_enlarges():
    augment = Augment.train(size=80, crop="resized", scale=(0.2, 0.6), flip=0.0, **PLAIN)
    pixels = noise(8, 60, 60)
    images = augment(pixels, seed=0, step=0).permute(0, 2, 3, 1)
    _, boxes = windows(augment, pixels, 0, 0)
    for image, picture, (top, left, tall, wide) in zip(images, pixels, boxes, strict=True):
        window = Image.fromarray(picture.numpy()).crop((left, top, left + wide, top + tall))
        expected = np.asarray(window.resize((80, 80), Image.Resampling.BILINEAR), dtype=np.float32)
        assert np.abs(image.numpy() - expected).max() <= 1.01  # Pillow rounds after each of its two passes


def test_whole_image_resized_to_its_own_size_is_unchanged():
    augment = Augment.train(size=32, crop="resized", scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0, **PLAIN)
    assert torch.equal(as_bytes(augment(noise(4, 32, 32), seed=0, step=0)), noise(4, 32, 32))


@pytest.mark.parametrize(
    ("channel", "enhance"),
    [(0, ImageEnhance.Brightness), (1, ImageEnhance.Contrast), (2, ImageEnhance.Color)],
)
def test_jitter_agrees_with_pil_one_by_one(channel, enhance):
    strength = tuple(0.6 * (index == channel) for index in range(4))
    augment = Augment.train(size=24, flip=0.0, jitter=strength, **PLAIN)
    pixels = noise(20, 24, 24)
    images = augment(pixels, seed=0, step=4).permute(0, 2, 3, 1)
    factors = augment._plan(len(pixels), pixels.device, 0, 4, 0)["jitter"][:, channel].tolist()
    assert min(factors) < 0.7
    assert max(factors) > 1.3
    for image, picture, factor in zip(images, pixels, factors, strict=True):
        expected = np.asarray(enhance(Image.fromarray(picture.numpy())).enhance(factor), dtype=np.float32)
        assert np.abs(image.numpy() - expected).max() <= 2  # Pillow truncates


def test_hue_agrees_with_colorsys_pixel_by_pixel():
    augment = Augment.train(size=6, flip=0.0, jitter=(0.0, 0.0, 0.0, 0.5), **PLAIN)
    pixels = noise(10, 6, 6)
    pixels[0] = 77  # gray has no hue
    pixels[1, 0] = torch.tensor([9, 200, 200])  # two largest channels
    images = augment(pixels, seed=0, step=4).permute(0, 2, 3, 1) / 255
    turns = augment._plan(len(pixels), pixels.device, 0, 4, 0)["jitter"][:, 3].tolist()
    assert max(turns) > 0.3
    assert min(turns) < -0.3
    for image, picture, turn in zip(images, pixels / 255, turns, strict=True):
        for got, color in zip(image.reshape(-1, 3).tolist(), picture.reshape(-1, 3).tolist(), strict=True):
            h, s, v = colorsys.rgb_to_hsv(*color)
            assert got == pytest.approx(colorsys.hsv_to_rgb((h + turn) % 1, s, v), abs=1e-4)


def test_all_jitters_compose_in_the_stated_order():
    pixels = noise(16, 12, 12)
    augment = Augment.train(size=12, flip=0.0, jitter=(0.4, 0.4, 0.4, 0.2), **PLAIN)
    images = augment(pixels, seed=7, step=7) / 255
    factors = augment._plan(len(pixels), pixels.device, 7, 7, 0)["jitter"].tolist()
    gray = torch.tensor([0.299, 0.587, 0.114])
    for image, picture, (brightness, contrast, saturation, turn) in zip(
        images, pixels / 255, factors, strict=True
    ):
        picture = (picture * brightness).clamp(0, 1)
        picture = (contrast * picture + (1 - contrast) * (picture @ gray).mean()).clamp(0, 1)
        picture = (saturation * picture + (1 - saturation) * (picture @ gray)[..., None]).clamp(0, 1)
        colors = [colorsys.rgb_to_hsv(*color) for color in picture.reshape(-1, 3).tolist()]
        expected = torch.tensor([colorsys.hsv_to_rgb((h + turn) % 1, s, v) for h, s, v in colors])
        torch.testing.assert_close(image.permute(1, 2, 0).reshape(-1, 3), expected, atol=1e-4, rtol=0)


FULL = Augment.train(size=20, crop="resized", jitter=(0.2, 0.2, 0.2, 0.1))


def test_same_seed_and_step_repeat_and_others_differ():
    pixels = noise(1, 24, 24).repeat(6, 1, 1, 1)
    images = FULL(pixels, seed=1, step=2)
    assert torch.equal(images, FULL(pixels, seed=1, step=2))
    for seed, step in [(1, 3), (2, 2), (2, 1), (12, 0), (1, 20)]:
        assert not torch.equal(images, FULL(pixels, seed=seed, step=step))
    for left in range(6):
        for right in range(left):
            assert not torch.equal(images[left], images[right])


def test_does_not_touch_the_global_random_state():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    FULL(noise(2, 24, 24), seed=0, step=0)
    assert torch.equal(before, torch.get_rng_state())


def test_ranks_give_their_slice_what_one_process_gives_it():
    pixels = noise(24, 24, 24)
    whole = FULL(pixels, seed=0, step=9)
    parts = [FULL(pixels[first : first + 6], seed=0, step=9, first=first) for first in range(0, 24, 6)]
    assert torch.equal(torch.cat(parts), whole)


def test_the_chunks_of_a_large_batch_share_their_plans():
    pixels, before = noise(2, 24, 24), _planned.cache_info().misses
    for step in range(16, 19):
        for first in range(0, 600, 2):  # more than are kept
            FULL(pixels, seed=77, step=step, first=first)
    assert _planned.cache_info().misses - before <= 10


def test_one_setting_does_not_change_the_draws_of_another():
    pixels = coordinates(8, 30, 30)
    crops = [
        as_bytes(Augment.train(size=20, flip=flip, **PLAIN)(pixels, seed=0, step=0))[..., 0]
        for flip in (0.0, 0.5)
    ]
    assert torch.equal(*crops)


@pytest.mark.parametrize("augment", [Augment.test(size=16), Augment.train(size=16), FULL])
def test_output_is_channels_last_float32_and_input_may_be_any_view(augment):
    pixels = noise(12, 32, 32)
    images = augment(pixels[::2, 2:30], seed=0, step=0)
    assert images.dtype == torch.float32
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, augment(pixels[::2, 2:30].clone(), seed=0, step=0))
    assert torch.equal(pixels, noise(12, 32, 32))
    assert augment(pixels[:0], seed=0, step=0).shape == (0, 3, augment.size, augment.size)


def test_flip_alone_around_the_center():
    augment = Augment(size=5, flip=1.0, **PLAIN)
    pixels = noise(3, 5, 5)
    assert torch.equal(as_bytes(augment(pixels, seed=0, step=0)), pixels.flip(2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, r"Augment\(size=0\)"),
        ({"crop": "middle"}, r"crop='middle'\): must be center, random or resized"),
        ({"scale": (0.5, 0.2)}, "scale="),
        ({"scale": (0.5, 1.2)}, "scale="),
        ({"ratio": (0.0, 1.0)}, "ratio="),
        ({"flip": 1.5}, "flip=1.5"),
        ({"jitter": (0.1, 0.1, 0.1, 0.6)}, "hue at most 0.5"),
        ({"jitter": (0.1, -0.1, 0.1, 0.1)}, "jitter="),
        ({"std": (0.0, 1.0, 1.0)}, "std="),
    ],
)
def test_settings_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        Augment(**arguments)


def test_pixels_and_seed_are_checked():
    with pytest.raises(ValueError, match=r"torch.float32 \[1, 30, 30, 3\]\): must be torch.uint8"):
        Augment.test(size=8)(torch.zeros(1, 30, 30, 3))
    with pytest.raises(ValueError, match=r"\[1, 3, 30, 30\]"):
        Augment.test(size=8)(torch.zeros(1, 3, 30, 30, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"size=31\): the images are 40 × 30; use a smaller size"):
        Augment.test(size=31)(torch.zeros(1, 30, 40, 3, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"seed=0, step=None\): a random augmentation needs both"):
        Augment.train(size=8)(torch.zeros(1, 30, 30, 3, dtype=torch.uint8), seed=0)


@pytest.fixture(scope="module")
def photographs():
    """A batch of images of many shapes on canvases of 24 × 36, and each of them by itself."""
    images = [
        noise(1, *shape, seed=sum(shape))[0] for shape in [(24, 24), (24, 36), (36, 24), (29, 24), (24, 25)]
    ]
    canvases = torch.full((5, 24, 36, 3), 255, dtype=torch.uint8)  # what is beside an image must not matter
    for canvas, image in zip(canvases, images, strict=True):
        lying = image.transpose(0, 1) if len(image) > 24 else image
        canvas[: lying.shape[0], : lying.shape[1]] = lying
    sizes = torch.tensor([image.shape[:2] for image in images], dtype=torch.int32)
    return PixelBatch(canvases, sizes, (24, 24)), images


@pytest.mark.parametrize(
    "augment",
    [
        Augment.test(size=20),
        Augment.test(size=(24, 10)),
        Augment(size=20, flip=0.5),
        Augment.train(size=20),
        Augment.train(size=(12, 24)),
        Augment.train(size=20, crop="resized"),
        Augment.train(size=(40, 30), crop="resized", scale=(0.9, 1.0)),
        FULL,
    ],
    ids=range(8),
)
def test_images_of_many_shapes_are_augmented_as_each_by_itself(photographs, augment):
    batch, images = photographs
    for step in range(20):
        together = augment(batch, seed=3, step=step)
        alone = [augment(image[None], seed=3, step=step, first=number) for number, image in enumerate(images)]
        torch.testing.assert_close(together, torch.cat(alone), atol=2e-4, rtol=0)


def test_images_smaller_than_the_crop_are_refused(photographs):
    batch, _ = photographs
    with pytest.raises(UserError, match=r"size=25\): the images are 24 × 24"):
        Augment.test(size=25)(batch)
    assert Augment.train(size=25, crop="resized")(batch, seed=0, step=0).shape == (5, 3, 25, 25)
