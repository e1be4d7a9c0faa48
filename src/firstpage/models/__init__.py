"""Models: backbones, and the embedder that turns images into unit vectors."""

from firstpage.models import backbones
from firstpage.models.embedder import Embedder
from firstpage.models.export import export

__all__ = ["Embedder", "backbones", "export"]
