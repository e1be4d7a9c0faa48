"""The tree of classes of the hierarchical triplet loss, against loops over images and classes."""

import pytest
import torch

from firstpage import losses
from firstpage.losses import class_tree
from firstpage.losses.class_tree import ClassTree, nearest_classes
from support.system_oracles import Tree

CLASSES = 14


def images(seed):
    """Clusters of classes at all distances; class 3 has one image, class 5 none."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(CLASSES, 4, generator=generator, dtype=torch.float64)
    counts = torch.randint(2, 5, (CLASSES,), generator=generator)
    counts[3], counts[5] = 1, 0
    labels = torch.arange(CLASSES).repeat_interleave(counts)
    noise = 0.2 * torch.randn(len(labels), 4, generator=generator, dtype=torch.float64)
    order = torch.randperm(len(labels), generator=generator)
    return (centers[labels] + noise)[order], labels[order]


@pytest.mark.parametrize("block", [2**24, 30])  # all classes at a time, or two
@pytest.mark.parametrize("seed", range(4))
def test_the_tree_equals_the_oracle(seed, block, monkeypatch):
    monkeypatch.setattr(class_tree, "BLOCK", block)
    vectors, labels = images(seed)
    wanted = Tree(vectors, labels, range(CLASSES), levels=16)
    tree = ClassTree(CLASSES).double()
    tree.build(vectors, labels)
    torch.testing.assert_close(tree.thresholds.tolist(), wanted.thresholds)
    torch.testing.assert_close(tree.spread.tolist(), list(wanted.spread.values()))
    everyone = torch.arange(CLASSES)
    found = tree.level(everyone, everyone)
    assert found.tolist() == [[wanted.level(p, q) for q in range(CLASSES)] for p in range(CLASSES)]
    assert len(found.unique()) > 4  # levels that the classes really differ by


@pytest.mark.parametrize("seed", range(2))
def test_margins_equal_the_oracle(seed):
    vectors, labels = images(seed)
    tree = Tree(vectors, labels, range(CLASSES), levels=16)
    loss = losses.HierarchicalTriplet(CLASSES, beta=0.2).double()
    loss.survey(vectors, labels)
    wanted = [[tree.margin(p, q, 0.2) for q in labels.tolist()] for p in labels.tolist()]
    torch.testing.assert_close(loss.margin(losses.base.Pairs.of(vectors, labels)).tolist(), wanted)


def test_nearest_classes_are_those_of_least_mean_distance(monkeypatch):
    vectors, labels = images(0)
    units = torch.nn.functional.normalize(vectors)
    wanted = []
    for one in range(CLASSES):
        means = {}
        for other in set(range(CLASSES)) - {one, 5}:
            pairs = [(a - b).square().sum() for a in units[labels == one] for b in units[labels == other]]
            means[other] = float(torch.stack(pairs).mean()) if pairs else 0.0
        wanted.append(sorted(means, key=means.get)[:4])
    for block in (2**24, 30):
        monkeypatch.setattr(class_tree, "BLOCK", block)
        found = nearest_classes(vectors, labels, CLASSES, 4).tolist()
        assert [row for one, row in enumerate(found) if one != 5] == [
            row for one, row in enumerate(wanted) if one != 5
        ]
    assert nearest_classes(vectors, labels, CLASSES, 99).shape == (CLASSES, CLASSES - 1)


@pytest.mark.parametrize(
    "vectors",
    [torch.zeros(6, 4), torch.ones(6, 4), torch.tensor([[1.0], [-1.0]]).repeat(3, 4)],
    ids=["zero", "one point", "opposite"],
)
@pytest.mark.parametrize("labels", [[0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5], [0, 1, 0, 1, 0, 1]])
def test_any_images_give_a_tree_with_finite_margins(vectors, labels):
    loss = losses.HierarchicalTriplet(classes=6)
    loss.survey(vectors, torch.tensor(labels))
    assert loss.tree.nodes[-1].unique().tolist() == [0]
    everyone = torch.arange(6)
    assert loss.tree.distance(everyone, everyone).isfinite().all()
    assert loss(torch.randn(6, 4), torch.arange(6) // 2).isfinite()


def test_labels_that_do_not_fit_are_named():
    loss = losses.HierarchicalTriplet(classes=2)
    for call in (loss, loss.survey):
        with pytest.raises(
            ValueError, match=r"labels run from 0 to 2: HierarchicalTriplet\(classes=2\) knows"
        ):
            call(torch.eye(3), torch.arange(3))
    with pytest.raises(ValueError, match=r"ClassTree\(classes=2, levels=0\): both must be at least 1"):
        losses.create("htl", classes=2, levels=0)
    with pytest.raises(ValueError, match=r"HierarchicalTriplet\(beta=-1.0\): need 0 <= beta"):
        losses.create("htl", classes=2, beta=-1)
