"""firstpage: image embeddings for visual search whose first page of results is right.

Labelled images go in, an embedding whose first page of results is right comes out, and everything is
measured on the way. The pieces of the ground floor:

- `firstpage.Pairs`: who is compared with whom, the one object every method reads.
- `firstpage.mining`: who is looked at (positive strategies × negative strategies).
- `firstpage.losses`: what their scores cost.

>>> import torch
>>> from firstpage import losses
>>> embeddings = torch.nn.functional.normalize(torch.randn(8, 16), dim=1).requires_grad_()
>>> loss = losses.create("topk", k=3)
>>> loss(embeddings, torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])).backward()
"""

from firstpage import losses, mining
from firstpage.pairs import Pairs

__version__ = "0.1.0"

__all__ = ["Pairs", "__version__", "losses", "mining"]
