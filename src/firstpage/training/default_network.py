"""Settings that go with a network: its loss, rates, schedule and image sizes; see `training.defaults`."""

from collections.abc import Mapping

from firstpage.losses.registry import required_arguments

FIRST_PAGE: dict[str, object] = {"name": "first-page"}
LEAST_FEATURES = 512  # of three stages of a convolutional network
ALL_EPOCHS = 10_000  # more than a run has
HALVED = ("schedule.milestones=[0.17, 0.33, 0.5, 0.67, 0.83]", "schedule.factor=0.5")


def network_settings(
    backbone: str, pretrained: bool, loss: Mapping[str, object], *, few: bool, slowly: bool, narrow: bool
) -> list[str]:
    """Return the settings of a network that is trained as a whole: loss, rates, schedule.

    Args:
        backbone: Its name.
        pretrained: Whether it begins with pretrained weights.
        loss: The loss.
        few: Whether it would overfit the images at the rate that suits more.
        slowly: Whether classes are so small that the rate had better fall slowly.
        narrow: Whether the embedding has few dimensions.

    >>> loss = {"name": "margin"}
    >>> network_settings("resnet50", True, loss, few=False, slowly=False, narrow=False)[-3:]
    ['optimizer.lr=2e-5', 'optimizer.head=5.0', 'optimizer.loss=100.0']
    """
    transformer = "vit" in backbone
    if pretrained:
        network = [
            "loss.name=first-page",
            *_pretrained_settings(transformer),
            *(["model.head=pca"] if narrow else []),
        ]
        faster = 10.0 if narrow else 1.0  # the head
        if not transformer and not _has_proxies(loss):
            return [*network, "optimizer.lr=2e-5", f"optimizer.head={5.0 * faster}", "optimizer.loss=100.0"]
        # Head and proxies always learn at the same rate, proxies at 0.01.
        lr, head, proxies = (
            (1e-5, 1.0, 1000.0) if transformer else (3e-5, 3.0, 300.0) if few else (1e-4, 1.0, 100.0)
        )
        return [
            *network,
            f"optimizer.lr={lr}",
            f"optimizer.head={head * faster}",
            f"optimizer.loss={proxies}",
            "schedule.head_epochs=3",
            *(["schedule.kind=cosine"] if slowly and loss == FIRST_PAGE else HALVED),
        ]
    size = ["model.dim=128", "model.stored=72", "model.crop=64"] if backbone == "small" else []
    return [
        "loss.name=topk",
        *size,
        "optimizer.lr=3e-3" if backbone == "small" else "optimizer.lr=1e-3",
        "optimizer.head=1.0",
        "optimizer.weight_decay=1e-2",
        "schedule.kind=cosine",
        "schedule.warmup=1.0",
    ]


def head_settings(backbone: str, dim: int) -> list[str]:
    """Return the settings of a head that is trained alone, on the features of its backbone.

    Args:
        backbone: Its name.
        dim: Dimensions of the embedding.

    >>> head_settings("resnet50", dim=512)[2:4]
    ['loss.name=topk', 'model.stages=3']
    """
    others = "vit" in backbone or ":" in backbone  # which may have no such stages, or few features
    stages = ["model.stages=3", "model.layer_norm=true", "optimizer.lr=2e-4"]
    return [
        *_pretrained_settings("vit" in backbone),
        "loss.name=topk",
        *(["optimizer.lr=3e-4"] if others else stages),
        f"model.head={'linear' if others or dim > LEAST_FEATURES else 'pca'}",
        "augment.scale=[0.4, 1.0]",
        "optimizer.head=1.0",
        "optimizer.loss=30.0",
        "schedule.kind=cosine",
        f"schedule.head_epochs={ALL_EPOCHS}",
    ]


def size_settings(backbone: str, alone: bool) -> list[str]:
    """Return the sizes of a pretrained network's images.

    Random crops show objects larger than whole images do, so tests take larger ones.

    Args:
        backbone: Its name.
        alone: Whether only the head is trained.

    >>> size_settings("resnet50", alone=False)[:3]
    ['model.stored=352', 'model.crop=320', 'augment.size=256']
    """
    if backbone.startswith("timm:"):  # many accept one size only
        return []
    if alone:  # the head; its backbone was pretrained at this size
        return ["model.stored=256", "model.crop=224", "augment.size=224"]
    if "vit" in backbone:
        return ["model.stored=320", "model.crop=308", "augment.size=224", "augment.scale=[0.25, 1.0]"]
    return ["model.stored=352", "model.crop=320", "augment.size=256", "augment.scale=[0.08, 1.0]"]


def _pretrained_settings(transformer: bool) -> list[str]:
    """Return what every pretrained network of a kind has."""
    return [
        f"model.pooling={'cls' if transformer else 'avg+max'}",
        f"model.freeze_batch_norm={'false' if transformer else 'true'}",
    ]


def _has_proxies(loss: object) -> bool:
    """Return whether a loss learns vectors for classes: it has to know how many, and how long they are."""
    if not isinstance(loss, Mapping) or not isinstance(name := loss.get("name"), str):
        return False  # `complete_recipe` will say so
    if name == "sum":
        parts = loss.get("parts")
        return isinstance(parts, list) and any(_has_proxies(part) for part in parts)
    return {"classes", "dim"} <= set(required_arguments(name))
