"""Retrieval metrics against loops."""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from firstpage.evaluation import evaluate


def naive(embeddings, labels, gallery, gallery_labels, ks, alone):
    """Rank by (−similarity, index), query by query."""
    unit = torch.nn.functional.normalize
    similarity = unit(embeddings, dim=1) @ unit(gallery, dim=1).T
    rows = []
    for q in range(len(labels)):
        others = [c for c in range(len(gallery)) if not (alone and c == q)]
        ranked = sorted(others, key=lambda c: -similarity[q, c].item())
        hits = [int(gallery_labels[c] == labels[q]) for c in ranked]
        relevant = sum(hits)
        if not relevant:
            continue
        row = {f"P@{k}": sum(hits[:k]) / k for k in ks} | {f"R@{k}": float(any(hits[:k])) for k in ks}
        row["P@R"] = sum(hits[:relevant]) / relevant
        row["MAP@R"] = sum(sum(hits[: r + 1]) / (r + 1) for r in range(relevant) if hits[r]) / relevant
        rows.append(row)
    return {name: 100 * sum(row[name] for row in rows) / len(rows) for name in rows[0]}, len(rows)


@hypothesis.given(
    st.integers(0, 10_000), st.integers(2, 14), st.integers(1, 5), st.booleans(), st.integers(1, 6)
)
def test_every_metric_equals_loops(seed, count, classes, alone, block):
    generator = torch.Generator().manual_seed(seed)
    points, labels = (
        torch.randn(count, 6, generator=generator),
        torch.randint(classes, (count,), generator=generator),
    )
    gallery, gallery_labels = points, labels
    if not alone:
        gallery = torch.randn(9, 6, generator=generator)
        gallery_labels = torch.randint(classes, (9,), generator=generator)
    relevant = (labels[:, None] == gallery_labels).sum(1) - int(alone)
    hypothesis.assume(bool((relevant > 0).any()))
    ks = (1, 2, 5, 30)
    found = evaluate(points, labels, *(() if alone else (gallery, gallery_labels)), ks=ks, block=block)
    expected, queries = naive(points, labels, gallery, gallery_labels, ks, alone)
    assert found.queries == queries
    assert found.without_positive == count - queries
    for name, value in found.row().items():
        assert value == pytest.approx(expected[name], abs=1e-9), name


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((torch.eye(3), torch.arange(3)), "nothing to find"),
        ((torch.eye(3), torch.zeros(2, dtype=torch.long)), "one label per row"),
        ((torch.eye(3) / 0, torch.zeros(3, dtype=torch.long)), "NaN"),
        ((torch.eye(3), torch.zeros(3, dtype=torch.long), torch.eye(3)), "gallery_labels"),
        (
            (torch.eye(3), torch.zeros(3, dtype=torch.long), torch.empty(0, 3), torch.empty(0).long()),
            "gallery",
        ),
    ],
)
def test_wrong_input_is_named(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        evaluate(*arguments)


def test_k_must_be_positive():
    with pytest.raises(ValueError, match=r"ks=\(0,\)"):
        evaluate(torch.eye(2), torch.zeros(2, dtype=torch.long), ks=(0,))
