"""Models: backbones, and the embedder that maps images to unit vectors."""

from firstpage.models import backbones
from firstpage.models.embedder import Embedder
from firstpage.models.ensemble import combine
from firstpage.models.onnx_export import export_onnx

__all__ = ["Embedder", "backbones", "combine", "export_onnx"]
