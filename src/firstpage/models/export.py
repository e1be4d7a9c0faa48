"""Export to ONNX."""

from __future__ import annotations

import copy
import json
import logging
import os
import warnings
from pathlib import Path

import torch

from firstpage import durable
from firstpage.errors import UserError
from firstpage.models.embedder import Embedder

__all__ = ["export", "input_words"]

_RESIZES = {
    "squash": "both sides scaled to {}",
    "shorter": "shorter side scaled to {}, center kept",
    "pad": "longer side scaled to {}, filled up with white",
}


def export(model: Embedder, path: str | os.PathLike[str], *, tolerance: float = 1e-4) -> Path:
    """Write the network as ONNX for any batch size, and check it against onnxruntime where there is one.

    The input is `images`, float32 [batch, 3, crop, crop], normalized; the output `embeddings`, unit vectors.
    How a photo becomes such an input is in the file: its description says what `input_words` does, and its
    metadata has `mean`, `std`, `crop`, `stored`, `resize` and `dim`, each as JSON.

    Args:
        model: what to export.
        path: the file.
        tolerance: largest difference of an entry that is accepted.

    Raises:
        UserError: the exporter is not installed.
        UserError: onnxruntime gives other vectors.

    >>> import tempfile
    >>> model = Embedder.create(backbone="small", dim=4, stored=48)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(model, Path(folder, "model.onnx")).name
    'model.onnx'
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise UserError("export needs onnx and onnxscript: pip install firstpage[onnx]") from None
    target = durable.check(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    model = copy.deepcopy(model).cpu().eval()  # where the figures to compare with are exact
    crop = model.preprocess.size
    images = torch.randn(3, 3, crop, crop)
    registry = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registry.level
    registry.setLevel(logging.ERROR)  # it misses torchvision, which nothing here needs
    try:
        with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch's own code, to torch
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
    written = program.model_proto
    written.doc_string = written.graph.input[0].doc_string = input_words(model)
    for key, value in _metadata(model).items():
        written.metadata_props.add(key=key, value=json.dumps(value))
    data = written.SerializeToString()
    try:
        import onnxruntime
    except ImportError:
        pass
    else:
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        found = torch.from_numpy(session.run(None, {"images": images[:2].numpy()})[0])
        difference = (found - expected).abs().max().item()
        if not difference <= tolerance:
            raise UserError(f"export({str(target)!r}): onnxruntime differs by {difference:.1e}: not written")
    durable.write(target, data)
    return target


def input_words(model: Embedder) -> str:
    """What the network's input must be, in one line.

    >>> input_words(Embedder.create(backbone="small", dim=4, stored=48, crop=40))
    'input: RGB, both sides scaled to 48, central 40 × 40, values 0 to 1, minus mean 0.485, 0.456, 0.406, ...'
    """
    about = _metadata(model)
    resized = _RESIZES[model.settings.resize].format(about["stored"])
    mean, std = (
        ", ".join(f"{value:g}" for value in part) for part in (model.backbone.mean, model.backbone.std)
    )
    return (
        f"input: RGB, {resized}, central {about['crop']} × {about['crop']}, values 0 to 1, "
        f"minus mean {mean}, divided by std {std}"
    )


def _metadata(model: Embedder) -> dict[str, object]:
    settings, backbone = model.settings, model.backbone
    return {
        "mean": backbone.mean,
        "std": backbone.std,
        "crop": settings.crop,
        "stored": settings.stored,
        "resize": settings.resize,
        "dim": model.dim,
    }
