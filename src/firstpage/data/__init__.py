"""From folders of images to batches."""

from firstpage.data.catalog import Catalog
from firstpage.data.readers import read, readers

__all__ = ["Catalog", "read", "readers"]
