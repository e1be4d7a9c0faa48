"""Faces: landmarks are taken to the template, every image is accounted for, and stopped commands go on."""

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter

from firstpage import Embedder, cli, recipes
from firstpage.data import faces, read
from firstpage.data.face_alignment import align_faces
from firstpage.data.faces import align_face, choose_face, face_template, similarity_transform
from firstpage.errors import UserError
from support.broken import bombs

needs_mtcnn = pytest.mark.skipif(find_spec("mtcnnruntime") is None, reason="needs firstpage[faces]")


def umeyama(points, targets):
    """The transform by another hand: Umeyama's equations 34 to 43, by a singular value decomposition."""
    mean, wanted = points.mean(axis=0), targets.mean(axis=0)
    covariance = (targets - wanted).T @ (points - mean) / len(points)
    u, d, vt = np.linalg.svd(covariance)
    sign = np.diag([1.0, -1.0 if np.linalg.det(covariance) < 0 else 1.0])
    rotation = u @ sign @ vt
    scale = np.trace(np.diag(d) @ sign) / ((points - mean) ** 2).sum(axis=1).mean()
    return np.column_stack([scale * rotation, wanted - scale * rotation @ mean])


@pytest.mark.parametrize("seed", range(20))
def test_the_transform_is_umeyamas_and_the_best(seed):
    random = np.random.default_rng(seed)
    points = random.normal(100, 30, (5, 2))
    targets = face_template() + random.normal(0, 3, (5, 2))
    if seed % 4 == 0:
        targets = targets * [-1, 1]  # mirrored: no similarity does that, and none may be made up
    found = similarity_transform(points, targets)
    np.testing.assert_allclose(found, umeyama(points, targets), atol=1e-9)
    # As a linear system in (a, b, x, y), by least squares.
    rows = [row for x, y in points for row in ((x, -y, 1, 0), (y, x, 0, 1))]
    a, b, x, y = np.linalg.lstsq(np.array(rows), targets.ravel(), rcond=None)[0]
    np.testing.assert_allclose(found, [[a, -b, x], [b, a, y]], atol=1e-9)


@pytest.mark.parametrize("points", [np.ones((5, 2)), np.full((5, 2), np.nan), np.diag([np.inf, 1.0])])
def test_landmarks_of_no_face_are_refused(points):
    with pytest.raises(UserError, match="landmarks: must be finite"), np.errstate(all="ignore"):
        similarity_transform(points, face_template())


def test_the_template_is_the_usual_one_of_both_sizes_and_is_scaled():
    usual = [
        [30.2946, 51.6963],
        [65.5318, 51.5014],
        [48.0252, 71.7366],
        [33.5493, 92.3655],
        [62.7299, 92.2041],
    ]
    np.testing.assert_allclose(face_template(), usual)
    np.testing.assert_allclose(face_template((112, 112)), np.add(usual, [8, 0]))
    np.testing.assert_allclose(face_template((224, 192)), 2 * np.array(usual))


def dot(x, y, side, radius):
    down, across = (np.exp(-((np.arange(side) - place) ** 2) / (2 * radius**2)) for place in (y, x))
    return Image.fromarray((255 * np.outer(down, across)).round().astype(np.uint8))


@pytest.mark.parametrize(("scale", "angle"), [(0.7, 10), (1.0, 0), (1.3, -25), (6.5, 15)])
def test_landmarks_end_where_the_template_has_them(scale, angle):
    """Also those of a large photograph, which is reduced first."""
    turn = scale * np.exp(1j * np.deg2rad(angle))
    middle = (face_template() @ [1, 1j] - 48 - 56j) * turn + 130 * scale * (1 + 1j)
    landmarks = np.column_stack([middle.real, middle.imag])
    for number, (x, y) in enumerate(face_template()):
        image = dot(*landmarks[number], int(260 * scale), 3 * scale)
        light = np.asarray(align_face(image, landmarks), float)
        rows, columns = np.indices(light.shape)
        found = (columns * light).sum() / light.sum(), (rows * light).sum() / light.sum()
        np.testing.assert_allclose(found, (x, y), atol=0.05)


def test_the_warp_is_opencvs():
    cv2 = pytest.importorskip("cv2", reason="needs firstpage[faces]")
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (25, 25, 3), np.uint8))
    image = image.resize((250, 250), Image.Resampling.BICUBIC)
    landmarks = face_template() * 1.2 + [70, 40] + np.random.default_rng(1).normal(0, 4, (5, 2))
    mine = np.asarray(align_face(image, landmarks), float)
    matrix = similarity_transform(landmarks, face_template())
    theirs = cv2.warpAffine(np.asarray(image), matrix, (96, 112), flags=cv2.INTER_LINEAR)
    assert np.abs(mine - theirs).max() <= 3  # it counts in 32nds of a pixel


def test_a_large_face_in_the_middle_is_chosen():
    def box(x, y, side):
        return [x - side / 2, y - side / 2, x + side / 2, y + side / 2, 0.9]

    landmarks = np.arange(20.0).reshape(2, 10)

    def chosen(*boxes):
        return int(choose_face(np.array(boxes), landmarks, (250, 250))[0, 0] // 10)

    assert chosen(box(125, 125, 60), box(125, 130, 90)) == 1  # both in the middle: the larger
    assert chosen(box(125, 125, 80), box(220, 60, 90)) == 0  # not a larger bystander
    assert chosen(box(125, 125, 20), box(150, 130, 120)) == 1  # nor a small one in the middle
    assert choose_face(np.zeros((0, 5)), np.zeros((0, 10)), (9, 9)) is None


def drawn_face(shift=0, scale=1.0):
    """A drawing that MTCNN takes for a face, and where its eyes are."""
    image = Image.new("RGB", (250, 250), (90, 110, 130))
    draw = ImageDraw.Draw(image)

    def oval(x, y, width, height, color):
        x, y = (125 + shift + scale * (value - 125) for value in (x, y))
        draw.ellipse([x - scale * width, y - scale * height, x + scale * width, y + scale * height], color)

    oval(125, 110, 62, 80, (60, 40, 30))  # hair
    oval(125, 130, 52, 70, (220, 180, 150))
    for x in (103, 147):
        oval(x, 98, 13, 3, (80, 55, 40))
        oval(x, 113, 11, 6, (240, 235, 230))
        oval(x, 113, 5, 5, (40, 30, 25))
        oval(x, 121, 11, 3, (200, 155, 130))
    oval(125, 135, 6, 16, (232, 195, 165))
    oval(125, 147, 10, 5, (200, 150, 125))
    for x in (119, 131):
        oval(x, 150, 3, 2, (120, 70, 60))
    oval(125, 169, 20, 6, (170, 80, 80))
    oval(125, 169, 18, 1.5, (110, 40, 45))
    eyes = [(125 + shift + scale * (x - 125), 125 + shift - scale * 12) for x in (103, 147)]
    return image.filter(ImageFilter.GaussianBlur(1.5)), np.array(eyes)


@needs_mtcnn
def test_a_drawn_face_is_found_as_the_package_finds_it():
    from mtcnnruntime import MTCNN

    for shift, scale in ((0, 1.0), (12, 0.85)):
        image, eyes = drawn_face(shift, scale)
        landmarks = faces.find_face(image)
        np.testing.assert_allclose(landmarks[:2], eyes, atol=6)
        _, theirs = MTCNN().detect(np.asarray(image)[:, :, ::-1].copy(), min_face_size=60)
        np.testing.assert_allclose(landmarks, theirs[0].reshape(2, 5).T, atol=1e-3)
    assert faces.find_face(Image.new("RGB", (250, 250))) is None


@needs_mtcnn
def test_landmarks_of_a_face_at_the_border_are_where_they_were():
    image, _ = drawn_face()
    for cut in (60, 75):  # of the hair, and of an ear
        landmarks = faces.find_face(image.crop((cut, 0, 250, 250)))
        np.testing.assert_allclose(np.add(landmarks, [cut, 0]), faces.find_face(image), atol=4)


@needs_mtcnn
def test_images_without_a_face_have_none():
    assert faces.find_face(Image.new("RGB", (20, 300))) is None  # smaller than a face


class Detector:
    """Finds a face in images that are not black."""

    def __init__(self):
        self.calls = 0

    def detect(self, pixels, min_face_size):
        self.calls += 1
        if pixels.max() == 0:
            raise ValueError("need at least one array to concatenate")
        points = np.array(face_template()) * 1.1 + 20
        return np.array([[40.0, 40, 130, 150, 1]]), points.T.reshape(1, 10)


@pytest.fixture
def detector(monkeypatch):
    stub = Detector()
    monkeypatch.setattr(faces, "load_detector", lambda: stub)
    monkeypatch.setattr(faces, "require_detector", lambda: None)
    return stub


@pytest.fixture
def photos(tmp_path):
    """A copy of LFW's layout: a face each, one without, one broken, a bomb and a GIF."""
    root = tmp_path / "lfw"
    for name in ("Ann/Ann_0001.jpg", "Ann/Ann_0002.jpg", "Bob/Bob_0001.jpg", "Bob/Bob_0002.gif"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (200, 200), (200, 150, 100)).save(root / name)
    Image.new("RGB", (200, 160)).save(root / "Ann" / "Ann_0003.png")
    (root / "Bob" / "Bob_0003.jpg").write_bytes(b"no image")
    (root / "Bob" / "Bob_0004.png").write_bytes(bombs()["bomb.png"])
    (root / "pairs.txt").write_text("2\t1\nAnn\t1\t2\nAnn\t1\tBob\t1\nBob\t1\t2\nAnn\t2\tBob\t2\n")
    return root


def listed(target):
    return dict(line.split("\t") for line in (target / "not_aligned.txt").read_text().splitlines())


def test_every_image_is_aligned_or_listed(tmp_path, photos, detector):
    target = tmp_path / "aligned"
    found = align_faces(photos, target, jobs=0, progress=False)
    written = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    images = {
        *(f"Ann/Ann_000{n}.jpg" for n in (1, 2)),
        "Ann/Ann_0003.png",
        "Bob/Bob_0001.jpg",
        "Bob/Bob_0002.png",
    }
    assert written == images | {"pairs.txt", "alignment.json", "not_aligned.txt"}
    assert {Image.open(target / name).size for name in images} == {(96, 112)}
    assert listed(target) == found.failures
    assert found.failures["Ann/Ann_0003.png"] == "no face"
    assert "not an image" in found.failures["Bob/Bob_0003.jpg"]
    assert "header claims" in found.failures["Bob/Bob_0004.png"]
    assert len(found.failures) == 3
    assert "aligned 4 of 7 images" in found.text()
    assert "without a face, cropped in the middle: 1; unreadable: 2" in found.text()
    pairs = read(target).pairs
    assert pairs.same.tolist() == [True, False, True, False]  # none is lost


def test_images_without_a_face_can_be_left_out(tmp_path, photos, detector):
    for _ in range(2):  # and are not looked at again
        calls = detector.calls
        found = align_faces(photos, tmp_path / "aligned", jobs=0, skip=True, progress=False)
        assert not (tmp_path / "aligned" / "Ann" / "Ann_0003.png").exists()
        assert "without a face, left out: 1" in found.text()
    assert (found.before, detector.calls - calls) == (5, 0)


def test_what_is_done_is_not_done_again(tmp_path, photos, detector):
    target = tmp_path / "aligned"
    align_faces(photos, target, jobs=0, progress=False)
    (target / "Ann" / "Ann_0002.jpg").unlink()
    Image.new("RGB", (200, 200), "white").save(photos / "Bob" / "Bob_0003.jpg")  # mended
    before = {path: path.stat().st_mtime_ns for path in target.rglob("*.*g") if path.is_file()}
    calls = detector.calls
    found = align_faces(photos, target, jobs=0, progress=False)
    assert detector.calls - calls == 2
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert set(listed(target)) == {"Ann/Ann_0003.png", "Bob/Bob_0004.png"}
    assert (found.images, found.before) == (7, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": (112, 112)}, 'was aligned with other settings, {"size": .112, 96.'),
        ({"min_face": 20}, "was aligned with other settings"),
        ({"skip": True}, "was aligned with other settings"),
        ({"min_face": 5}, "min_face=5: must be at least 12 pixels"),
        ({"size": (0, 96)}, "size=0x96: height and width"),
        ({"jobs": -1}, "jobs=-1"),
        ({"target": "lfw/aligned"}, "must be outside of"),
        ({"target": "."}, "must be outside of"),
        ({"target": "other"}, "other: holds other files"),
        ({"target": "lfw/pairs.txt"}, "must be outside of"),
    ],
)
def test_what_would_mix_or_lose_files_is_refused(tmp_path, photos, detector, change, message):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "holiday.jpg").touch()
    align_faces(photos, tmp_path / "aligned", jobs=0, progress=False)
    options = {"jobs": 0} | {key: value for key, value in change.items() if key != "target"}
    with pytest.raises(UserError, match=message) as caught:
        align_faces(photos, tmp_path / change.get("target", "aligned"), progress=False, **options)
    assert "\n" not in str(caught.value)


def test_two_images_never_become_one(tmp_path, photos, detector):
    (photos / "Bob" / "Bob_0002.png").touch()
    with pytest.raises(UserError, match=r"Bob_0002\.gif and .*Bob_0002\.png would become one file"):
        align_faces(photos, tmp_path / "aligned", jobs=0, progress=False)


def test_folders_without_images_and_a_missing_package(tmp_path, photos, monkeypatch):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no images in this folder"):
        align_faces(tmp_path / "empty", tmp_path / "aligned")
    monkeypatch.setattr(faces, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'firstpage\[faces\]'"):
        align_faces(photos, tmp_path / "aligned")
    assert not (tmp_path / "aligned").exists()


def test_the_recipe_takes_aligned_faces_as_they_are():
    model = Embedder(recipes.find("casia-margin").model)
    assert model.backbone.widths == (192, 384, 768)  # Sampling Matters, §5
    face, _ = drawn_face()
    face = align_face(face, face_template() * 1.2 + [65, 50])
    assert np.array_equal(model.framing.scale(face), face)
    assert model.embed([face], progress=False).shape == (1, 256)


def test_on_the_command_line(tmp_path, photos, detector, capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            cli.main(["align", "faces", str(photos), str(tmp_path / "aligned"), "--jobs", "0", *arguments])
        return end.value.code, *capsys.readouterr()

    code, _, err = run("--size", "112")
    assert (code, err) == (2, "firstpage: --size 112: write height and width in pixels, such as 112x96\n")
    code, out, _ = run("--size", "112x112", "--min-face", "40")
    assert code == 0
    assert "Ann/Ann_0003.png: no face" in out
    assert Image.open(tmp_path / "aligned" / "Ann" / "Ann_0001.jpg").size == (112, 112)


PACKAGES = {  # in place of the real ones, in processes of their own: slow enough to be killed
    "cv2.py": "setNumThreads = print",
    "onnxruntime.py": "class SessionOptions: pass\nInferenceSession = dict",
    "mtcnnruntime/__init__.py": "from mtcnnruntime.detector import MTCNN",
    "mtcnnruntime/detector.py": """
import time
import numpy as np
import onnxruntime

correct_bboxes = None

class MTCNN:
    def detect(self, pixels, min_face_size):
        time.sleep(0.03)
        if pixels.max() < 99:
            raise ValueError
        points = [30, 66, 48, 34, 63, 52, 52, 72, 92, 92]
        return np.array([[10.0, 10, 90, 100, 1]]), np.array([points], float)
""",
}


def test_killed_processes_go_on_where_they_were(tmp_path):
    for name, code in PACKAGES.items():
        (tmp_path / "packages" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "packages" / name).write_text(code)
    source, target = tmp_path / "photos", tmp_path / "aligned"
    for number in range(64):
        (source / f"person{number % 8}").mkdir(parents=True, exist_ok=True)
        shade = 0 if number % 8 == 3 else 200
        Image.new("RGB", (120, 120), (shade,) * 3).save(source / f"person{number % 8}" / f"{number}.jpg")
    path = os.pathsep.join([str(tmp_path / "packages"), *sys.path])
    code = "import sys; from firstpage.data.face_alignment import *; align_faces(*sys.argv[1:], jobs=2)"
    command = [sys.executable, "-c", code, str(source), str(target)]
    environment = os.environ | {"PYTHONPATH": path}
    first = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    while first.poll() is None and len(list(target.rglob("*.jpg"))) < 12:
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    time.sleep(0.3)  # workers end when they notice
    before = {path: path.stat().st_mtime_ns for path in target.rglob("*.jpg")}
    assert 12 <= len(before) < 64
    subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL, timeout=60)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    aligned = {path.relative_to(target) for path in target.rglob("*.jpg")}
    assert aligned == {path.relative_to(source) for path in source.rglob("*.jpg")}
    assert all(Image.open(target / name).size == (96, 112) for name in aligned)
    assert set(listed(target)) == {f"person3/{number}.jpg" for number in range(3, 64, 8)}
    assert not [path for path in target.rglob("*") if path.name.endswith((".part", ".lock"))]
