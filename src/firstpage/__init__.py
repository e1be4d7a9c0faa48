"""firstpage: image embeddings for visual search whose first page of results is right."""

__version__ = "0.1.0"
