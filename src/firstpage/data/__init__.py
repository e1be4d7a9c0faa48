"""From folders of images to batches."""

from firstpage.data.catalog import Catalog
from firstpage.data.readers import kinds, read

__all__ = ["Catalog", "kinds", "read"]
