"""Faces: found by MTCNN (`pip install 'firstpage[faces]'`), and aligned by five landmarks.

Landmarks are [5, 2] arrays of x and y, in pixels counted from the center of the first one: the eye on the
left of the image, the one on its right, the tip of the nose, and the corners of the mouth, left and right.
"""

import io
import warnings
from contextlib import redirect_stdout
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from firstpage.errors import UserError

Points = NDArray[np.float64]
Size = tuple[int, int]

SIZE = 112, 96  # height and width of the usual template
TEMPLATE = (
    (30.2946, 51.6963),
    (65.5318, 51.5014),
    (48.0252, 71.7366),
    (33.5493, 92.3655),
    (62.7299, 92.2041),
)
WINDOW = 12  # pixels: what MTCNN's first network looks at
MIDDLE = 0.53  # height of the crop that alignment takes of an image of LFW, relative to it: the median

REMEDY = "faces are found by mtcnn-runtime: pip install 'firstpage[faces]'"


def face_template(size: Size = SIZE) -> Points:
    """Return where the landmarks are in an aligned face of a size (height, width): [5, 2].

    The usual template is that of 112 × 96 pixels. It is scaled to fit, and centered.

    >>> face_template((112, 112))[0]  # the usual one of 112 × 112 as well
    array([38.2946, 51.6963])
    """
    height, width = size
    scale = min(height / SIZE[0], width / SIZE[1])
    return np.asarray(TEMPLATE) * scale + [(width - scale * SIZE[1]) / 2, (height - scale * SIZE[0]) / 2]


def similarity_transform(points: ArrayLike, targets: ArrayLike) -> Points:
    """Return the rotation, scaling and translation that takes points nearest to targets: a matrix [2, 3].

    Least squares over all points, without reflections (Umeyama, 1991). In the plane this has a simple form:
    with points as complex numbers it is the regression w = a z + b.

    Args:
        points: [N, 2] points.
        targets: [N, 2] where they shall be.

    Raises:
        UserError: All points are the same, or one is not finite.

    >>> similarity_transform([[0, 0], [2, 0]], [[5, 1], [5, 5]])  # a quarter turn, twice the size
    array([[ 0., -2.,  5.],
           [ 2.,  0.,  1.]])
    """
    z, w = (np.asarray(values, np.float64) @ [1, 1j] for values in (points, targets))
    centered, wanted = z - z.mean(), w - w.mean()
    spread = (np.abs(centered) ** 2).sum()
    if not (spread > 0 and np.isfinite(spread) and np.isfinite(w).all()):
        raise UserError("landmarks: must be finite, and not all the same point")
    a = (centered.conj() * wanted).sum() / spread
    b = w.mean() - a * z.mean()
    return np.array([[a.real, -a.imag, b.real], [a.imag, a.real, b.imag]])


def align_face(image: Image.Image, landmarks: ArrayLike, size: Size = SIZE) -> Image.Image:
    """Turn, scale and crop an image so that the landmarks of a face are where `face_template` has them.

    What is outside of the image is black.

    Args:
        image: The image.
        landmarks: [5, 2] landmarks of the face.
        size: Height and width of the result.

    Raises:
        UserError: Landmarks that no face has: not finite, in one point, or mirrored.

    >>> align_face(Image.new("RGB", (250, 250)), 2 * face_template(), (112, 96)).size
    (96, 112)
    """
    (cosine, _, x), (sine, _, y) = similarity_transform(landmarks, face_template(size))
    turn, shift = complex(cosine, sine), complex(x, y)
    if abs(turn) < 1e-9:
        raise UserError("landmarks: are not those of a face")
    half = 0.5 + 0.5j  # Pillow counts from the corner of the first pixel, landmarks from its center
    scale, offset = 1 / turn, half - (half + shift) / turn
    if (factor := int(abs(scale))) > 1:  # a pixel of the result is the mean of many, not one of them
        image = image.reduce(factor)
        scale, offset = scale / factor, offset / factor
    matrix = scale.real, -scale.imag, offset.real, scale.imag, scale.real, offset.imag
    return image.transform(
        (size[1], size[0]), Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR
    )


def crop_middle(image: Image.Image, size: Size = SIZE) -> Image.Image:
    """Crop the middle of an image in which no face was found, as Sampling Matters does.

    The crop is as large as an aligned one is in most images of LFW, which has faces in the middle: 0.53 of
    the shorter side is its height.

    >>> crop_middle(Image.new("RGB", (250, 250))).size
    (96, 112)
    """
    height, width = size
    scale = MIDDLE * min(image.size) / max(size)
    left, top = (image.width - scale * width) / 2, (image.height - scale * height) / 2
    box = left, top, left + scale * width, top + scale * height
    return image.resize((width, height), Image.Resampling.BILINEAR, box)


def find_face(image: Image.Image, min_face: int = 60) -> Points | None:
    """Find a face, and return its landmarks [5, 2]; None if there is none.

    Of several faces it is the one with the largest area minus twice the squared distance of its center from
    that of the image: a large face in the middle, which is whom a photograph shows, and not a bystander.

    Args:
        image: An RGB image.
        min_face: Height of the smallest face to find, in pixels. With 20 it takes twice the time of 60.

    Raises:
        UserError: `min_face` is too small, or mtcnn-runtime is not installed.

    >>> find_face(Image.new("RGB", (99, 99)), min_face=5)
    Traceback (most recent call last):
    firstpage.errors.UserError: min_face=5: must be at least 12 pixels
    """
    if min_face < WINDOW:
        raise UserError(f"min_face={min_face}: must be at least {WINDOW} pixels")
    pixels = np.ascontiguousarray(np.asarray(image)[:, :, ::-1])  # it takes blue, green, red
    detector = load_detector()
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():  # it prints "error" at borders
            warnings.simplefilter("ignore")
            boxes, landmarks = detector.detect(pixels, min_face_size=min_face)
    except ValueError:  # so it says that its first network finds none
        return None
    return choose_face(np.asarray(boxes), np.asarray(landmarks), image.size)


def choose_face(boxes: NDArray[Any], landmarks: NDArray[Any], size: Size) -> Points | None:
    """Return the landmarks [5, 2] of the face that `find_face` prefers; None if there is none.

    Args:
        boxes: [N, 5] left, top, right, bottom and score of each face.
        landmarks: [N, 10] x of five landmarks, then y.
        size: Width and height of the image.

    >>> boxes = np.array([[0, 0, 30, 40, 1.0], [100, 100, 150, 160, 0.9]])
    >>> choose_face(boxes, np.arange(20.0).reshape(2, 10), (250, 250))[:, 0]
    array([10., 11., 12., 13., 14.])
    """
    if not len(boxes):
        return None
    sides = boxes[:, 2:4] - boxes[:, :2]
    away = (boxes[:, :2] + boxes[:, 2:4]) / 2 - np.asarray(size) / 2
    best = int((sides.prod(axis=1) - 2 * (away**2).sum(axis=1)).argmax())
    chosen: Points = landmarks[best].reshape(2, 5).T.astype(np.float64)
    return chosen


def require_detector() -> None:
    """Raise a `UserError` if mtcnn-runtime is not installed, without loading it, which takes half a second.

    >>> require_detector() if find_spec("mtcnnruntime") else None
    """
    if find_spec("mtcnnruntime") is None:
        raise UserError(REMEDY)


@cache
def load_detector() -> Any:  # noqa: ANN401
    """Load MTCNN, once in a process.

    Raises:
        UserError: mtcnn-runtime, or a library that it needs, is not installed.
    """
    try:
        import cv2
        import onnxruntime
        from mtcnnruntime import MTCNN, detector
    except ImportError as error:
        raise UserError(f"{REMEDY} ({error})") from None
    cv2.setNumThreads(1)
    # One thread per process: with one per core, as it asks for, they wait for one another four times as long.
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession
    # It clips the boxes that it then counts landmarks from: those of a face at the border were 10 pixels off.
    clip = detector.correct_bboxes
    detector.correct_bboxes = lambda boxes, width, height: clip(boxes.copy(), width, height)
    detector.onnxruntime.InferenceSession = partial(session, sess_options=options)
    try:
        return MTCNN()
    finally:
        detector.onnxruntime.InferenceSession = session
