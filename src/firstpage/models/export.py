"""Export to ONNX."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path

import torch

from firstpage import durable
from firstpage.models.embedder import Embedder

__all__ = ["export"]


def export(model: Embedder, path: str | os.PathLike[str], *, tolerance: float = 1e-4) -> Path:
    """Write the network as ONNX for any batch size, and check it against onnxruntime where there is one.

    The input is `images`, float32 [batch, 3, crop, crop], normalised; the output `embeddings`, unit vectors.

    Args:
        model: what to export.
        path: the file.
        tolerance: largest difference of an entry that is accepted.

    Raises:
        ImportError: the exporter is not installed.
        ValueError: onnxruntime gives other vectors.

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
        raise ImportError("export needs onnx and onnxscript: pip install firstpage[onnx]") from None
    target = durable.check(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    crop = model.preprocess.size
    images = torch.randn(3, 3, crop, crop, device=model.device)
    was_training = model.training
    model.eval()
    part = target.with_name(f"{target.stem}.part.onnx")
    registry = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registry.level
    registry.setLevel(logging.ERROR)  # it misses torchvision, which nothing here needs
    try:
        with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch's own code, to torch
            torch.onnx.export(
                model,
                (images,),
                part,
                input_names=["images"],
                output_names=["embeddings"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
            expected = model(images[:2]).cpu()
    finally:
        registry.setLevel(level)
        model.train(was_training)
    try:
        import onnxruntime
    except ImportError:
        pass
    else:
        session = onnxruntime.InferenceSession(part, providers=["CPUExecutionProvider"])
        found = torch.from_numpy(session.run(None, {"images": images[:2].cpu().numpy()})[0])
        difference = (found - expected).abs().max().item()
        if not difference <= tolerance:
            part.unlink()
            raise ValueError(f"export({str(target)!r}): onnxruntime differs by {difference:.1e}: not written")
    os.replace(part, target)
    return target
