"""Export to ONNX."""

import copy
import json
import logging
import os
import warnings
from pathlib import Path

import torch

from firstpage import durable
from firstpage.data.framing import as_pair
from firstpage.errors import UserError
from firstpage.models.embedder import Embedder

_RESIZES = {
    "squash": "scaled to {height} × {width}",
    "shorter": "shorter side scaled to {height}",
    "pad": "scaled to fit into {height} × {width}, filled up with white",
}


def export_onnx(model: Embedder, path: str | os.PathLike[str], *, tolerance: float = 1e-4) -> Path:
    """Write the network as ONNX for any batch size, and check it with onnxruntime if that is installed.

    The input is `images`, float32 [batch, 3, height, width], normalized; the output is `embeddings`.
    The file documents how an image becomes such an input: its description is that of `describe_input`, and
    its metadata has `mean`, `std`, `crop`, `stored`, `resize`, `boxes` and `dim`, each as JSON.

    Args:
        model: The embedder to export.
        path: The file to write.
        tolerance: Largest difference between an entry of torch's and of onnxruntime's vectors.

    Raises:
        UserError: The file is not named .onnx, the exporter is missing, or onnxruntime returns different
            vectors.

    >>> import tempfile
    >>> model = Embedder.create(backbone="small", dim=4, stored=48)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export_onnx(model, Path(folder, "model.onnx")).name
    'model.onnx'
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise UserError("the export to ONNX needs onnx and onnxscript: pip install firstpage[onnx]") from None
    if Path(path).suffix.lower() != ".onnx":
        raise UserError(f"{path}: an ONNX file is named .onnx: choose such a name")
    target = durable.check(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    model = copy.deepcopy(model).cpu().eval()  # where the vectors to compare with are exact
    images = torch.randn(3, 3, *as_pair(model.preprocess.size))
    registry = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registry.level
    registry.setLevel(logging.ERROR)  # it warns about a missing torchvision, which is not needed
    try:
        with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # raised by torch about its own code
            program = torch.onnx.export(
                model,
                (images,),
                input_names=["images"],
                output_names=["embeddings"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                verbose=False,
            )
            expected = model(images[:2])
    finally:
        registry.setLevel(level)
    assert program is not None
    proto = program.model_proto
    proto.doc_string = proto.graph.input[0].doc_string = describe_input(model)
    for key, value in _metadata(model).items():
        proto.metadata_props.add(key=key, value=json.dumps(value))
    data = proto.SerializeToString()
    try:
        import onnxruntime
    except ImportError:
        pass
    else:
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        actual = torch.from_numpy(session.run(None, {"images": images[:2].numpy()})[0])
        difference = (actual - expected).abs().max().item()
        if not difference <= tolerance:
            raise UserError(
                f"export to {str(target)!r}: onnxruntime's vectors differ by {difference:.1e}, more than "
                f"tolerance={tolerance:g}; no file was written"
            )
    durable.write(target, data)
    return target


def describe_input(model: Embedder) -> str:
    """Describe in one line how an image becomes the network's input.

    >>> describe_input(Embedder.create(backbone="small", dim=4, stored=48, crop=40))
    'input: RGB, shorter side scaled to 48, central 40 × 40, values 0 to 1, minus mean 0.485, ...'
    """
    settings, backbone = model.settings, model.backbone
    height, width = as_pair(settings.stored)
    resized = _RESIZES[settings.resize].format(height=height, width=width)
    resized = f"cut to the box of the object, {resized}" if settings.boxes else resized
    crop = " × ".join(map(str, as_pair(model.preprocess.size)))
    mean, std = (", ".join(f"{value:g}" for value in part) for part in (backbone.mean, backbone.std))
    return f"input: RGB, {resized}, central {crop}, values 0 to 1, minus mean {mean}, divided by std {std}"


def _metadata(model: Embedder) -> dict[str, object]:
    settings, backbone = model.settings, model.backbone
    return {
        "mean": backbone.mean,
        "std": backbone.std,
        "crop": settings.crop,
        "stored": settings.stored,
        "resize": settings.resize,
        "boxes": settings.boxes,
        "dim": model.dim,
    }
