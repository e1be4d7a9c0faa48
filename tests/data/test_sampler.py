import re
import time
from itertools import chain, groupby

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from firstpage.data.neighbor_sampler import NeighborSampler
from firstpage.data.sampler import GroupSampler


def labels_of(counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    return np.random.default_rng(len(labels)).permutation(labels)  # rows of a class need not be adjacent


def visits_of(batches, labels):
    return [[(label, len(list(run))) for label, run in groupby(labels[batch])] for batch in batches]


counts_lists = st.lists(st.integers(1, 9), min_size=2, max_size=12)


@settings(max_examples=200, deadline=None)
@given(
    counts_lists, st.integers(1, 6), st.integers(2, 40), st.booleans(), st.integers(0, 3), st.integers(0, 5)
)
def test_every_batch_is_groups_in_class_order(counts, per_class, batch_size, oversample, seed, epoch):
    labels = labels_of(counts)
    group = [per_class if oversample else min(per_class, count) for count in counts]
    if max(group) >= batch_size or sum(group) < batch_size:
        with pytest.raises(ValueError, match=r"use (a batch size above|at most)"):
            GroupSampler(labels, batch_size, per_class, oversample=oversample)
        return
    sampler = GroupSampler(labels, batch_size, per_class, oversample=oversample, seed=seed)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert len(batches) == len(sampler) == max(1, len(labels) // batch_size)
    order = []
    for batch, visits in zip(batches, visits_of(batches, labels), strict=True):
        assert len(batch) == batch_size
        assert len(visits) == len({label for label, _ in visits}) >= 2  # a class once, so its group together
        assert all(size == group[label] for label, size in visits[:-1])
        assert 1 <= visits[-1][1] <= group[visits[-1][0]]
        if not oversample:
            assert len(set(batch)) == batch_size
        for label, size in visits:  # a class repeats an image only when it has no other left
            assert len(set(np.array(batch)[labels[batch] == label])) == min(size, counts[label])
        order += [label for label, _ in visits]
    for begin in range(0, len(order), len(counts)):  # each pass is a permutation of the classes
        classes = order[begin : begin + len(counts)]
        assert len(set(classes)) == len(classes)


@pytest.mark.parametrize(("count", "per_class"), [(12, 4), (11, 4), (5, 4), (7, 3), (4, 4), (9, 1)])
def test_a_class_shows_all_its_images_before_it_starts_again(count, per_class):
    labels = labels_of([count] * 6)
    sampler = GroupSampler(labels, batch_size=2 * per_class, images_per_class=per_class)  # nothing is cut
    shown = {label: [] for label in range(6)}
    for epoch in range(12):
        visits = sampler.plan(epoch).reshape(-1, per_class)
        for label, groups in shown.items():  # a last, unfinished pass shows what the next epoch begins with
            groups += visits[labels[visits[:, 0]] == label].tolist()[: count // per_class]
    turns = -(-count // per_class)
    for groups in shown.values():
        assert len(groups) >= turns
        for begin in range(0, len(groups) - turns + 1, turns):
            assert len(set().union(*groups[begin : begin + turns])) == count


def test_images_of_large_classes_are_all_used_over_the_epochs():
    labels = labels_of([1000, 5, 5, 5, 5])
    sampler = GroupSampler(labels, batch_size=12, images_per_class=4)
    uses = np.bincount([row for _ in range(5) for batch in sampler for row in batch], minlength=len(labels))
    assert uses[labels == 0].min() == 1  # 5 epochs are 255 visits of 4 images
    assert uses[labels == 0].max() == 2


def test_groups_change_from_cycle_to_cycle():
    labels = labels_of([8] * 4)
    sampler = GroupSampler(labels, batch_size=8, images_per_class=4)
    groups = {frozenset(batch[:4]) for _ in range(20) for batch in sampler}
    assert len(groups) > 60


@settings(max_examples=60, deadline=None)
@given(counts_lists, st.sampled_from([1, 2, 3]), st.booleans())
def test_ranks_share_each_global_batch(counts, world, drop_last):
    labels = labels_of([*counts, 9, 9, 9, 9])
    whole = GroupSampler(labels, 12, 3, drop_last=drop_last)
    ranks = [
        GroupSampler(labels, 12, 3, rank=rank, world=world, drop_last=drop_last) for rank in range(world)
    ]
    batches = list(whole)
    if len(batches[-1]) < world:
        batches.pop()
    shares = [list(rank) for rank in ranks]
    assert [list(chain(*parts)) for parts in zip(*shares, strict=True)] == batches
    assert all(parts for share in shares for parts in share)
    assert {len(batch) for share in shares for batch in share[:-1]} <= {12 // world}


@settings(max_examples=60, deadline=None)
@given(counts_lists, st.integers(0, 3), st.integers(0, 10), st.booleans())
def test_resumes_to_exactly_the_remaining_batches(counts, epoch, position, drop_last):
    labels = labels_of([*counts, 9, 9])
    first, second = (GroupSampler(labels, 5, 3, seed=4, drop_last=drop_last) for _ in range(2))
    first.set_epoch(epoch)
    batches = iter(first)
    for _ in range(min(position, len(first))):
        next(batches)
    second.load_state_dict(first.state_dict())
    assert list(second) == list(batches)
    assert list(second) == list(first)  # and the next epoch is the same too
    assert second.epoch == epoch + 2


def test_resumes_on_more_ranks():
    labels = labels_of([5] * 20)
    one = GroupSampler(labels, 12, 3)
    batches = iter(one)
    next(batches)
    state = one.state_dict()
    ranks = [GroupSampler(labels, 12, 3, rank=rank, world=4) for rank in range(4)]
    for rank in ranks:
        rank.load_state_dict(state)
    assert [list(chain(*parts)) for parts in zip(*ranks, strict=True)] == list(batches)


def test_iterating_again_goes_on_and_set_epoch_starts_over():
    sampler = GroupSampler(labels_of([4] * 10), 8, 2)
    everything = list(sampler)
    sampler.set_epoch(0)
    for batch in sampler:
        assert batch == everything[0]
        break
    assert list(sampler) == everything[1:]


def test_seeds_and_epochs_differ_and_repeat():
    labels = labels_of([6] * 30)
    plans = {
        (seed, epoch): tuple(GroupSampler(labels, 20, 3, seed=seed).plan(epoch))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(set(plans.values())) == 9
    assert all(
        tuple(GroupSampler(labels, 20, 3, seed=seed).plan(epoch)) == plan
        for (seed, epoch), plan in plans.items()
    )


def test_order_of_classes_is_uniform():
    first = [
        int(GroupSampler(np.repeat(np.arange(8), 2), 4, 2, seed=seed).plan(0)[0]) // 2 for seed in range(800)
    ]
    assert np.bincount(first, minlength=8).min() > 60  # expected 100, standard deviation 9.4
    assert np.bincount(first, minlength=8).max() < 140


def test_last_short_batch():
    labels = labels_of([3] * 7)
    assert [len(batch) for batch in GroupSampler(labels, 6, 2)] == [6, 6, 6]
    assert [len(batch) for batch in GroupSampler(labels, 6, 2, drop_last=False)] == [6, 6, 6, 3]
    assert [len(batch) for batch in GroupSampler(labels, 6, 2, drop_last=False, world=2)] == [3, 3, 3, 1]
    assert [len(batch) for batch in GroupSampler(labels, 18, 3, drop_last=False, world=6)] == [
        3
    ]  # 3 < 6 ranks


def test_classes_of_one_image():
    sampler = GroupSampler(np.arange(50), 16, 4)
    assert sorted(row for batch in sampler for row in batch) == sorted(set(sampler.plan(0)))
    assert len(sampler) == 3
    repeated = next(iter(GroupSampler(np.arange(50), 16, 4, oversample=True)))
    assert [repeated.count(row) for row in sorted(set(repeated))] == [4] * 4


def test_oversampling_may_fill_a_batch_larger_than_the_set():
    assert [len(batch) for batch in GroupSampler([0, 1, 2, 3], 12, 3, oversample=True)] == [12]


def test_is_a_batch_sampler_and_takes_a_tensor():
    labels = torch.arange(40) // 4
    data = torch.utils.data.TensorDataset(torch.arange(40), labels)
    sampler = GroupSampler(labels, 8, 4)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
    batches = [rows.tolist() for rows, _ in loader]
    assert len(loader) == 5
    sampler.set_epoch(0)
    assert batches == list(sampler)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, r"batch size 0: must be a positive multiple"),
        ({"batch_size": 6, "world": 4}, r"batch size 6: must be a positive multiple of world=4"),
        ({"batch_size": 3}, "without negatives; use a batch size above 3 or 2 images per class"),
        ({"batch_size": 40}, r"the 10 classes give only 30 images; use at most 30 \(--set batch.size=30\)"),
        ({"images_per_class": 0}, r"images per class 0: must be at least 1"),
        ({"seed": -1}, r"seed=-1\): seed must not be negative"),
        ({"rank": 2, "world": 2}, r"rank=2, world=2\): rank must be in"),
        ({"labels": []}, r"labels of shape \(0,\)"),
        ({"labels": [[1, 2]]}, r"labels of shape \(1, 2\)"),
        ({"labels": [3] * 50}, "no size is possible: the 1 classes give 3 images"),
    ],
)
def test_errors_name_the_argument_and_the_remedy(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        GroupSampler(**{"labels": np.arange(40) // 4, "batch_size": 6, "images_per_class": 3} | arguments)
    assert "\n" not in str(error.value)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.integers(1, 6),
    st.integers(1, 60),
    st.booleans(),
    st.integers(1, 3),
)
def test_what_an_error_suggests_is_accepted(counts, per_class, batch_size, oversample, world):
    labels, options = labels_of(counts), {"oversample": oversample, "world": world}
    batch_size *= world
    try:
        GroupSampler(labels, batch_size, per_class, **options)
    except ValueError as error:
        if "no size is possible" in str(error):
            for size in range(world, sum(counts) * per_class + world, world):
                with pytest.raises(ValueError, match="no size is possible"):
                    GroupSampler(labels, size, per_class, **options)
            return
        said = {name: int(number) for name, number in re.findall(r"(above|at most|or) (\d+)", str(error))}
        if "above" not in said:
            GroupSampler(labels, said["at most"], per_class, **options)
        else:
            GroupSampler(labels, -(-(said["above"] + 1) // world) * world, per_class, **options)
        if "or" in said and world == 1:
            GroupSampler(labels, batch_size, said["or"], **options)


def test_refuses_the_state_of_other_labels():
    state = GroupSampler(np.arange(40) // 4, 6, 3).state_dict()
    with pytest.raises(ValueError, match="labels_crc32"):
        GroupSampler(np.arange(40) // 5, 6, 3).load_state_dict(state)


def test_plans_online_products_in_under_a_second():
    counts = np.random.default_rng(0).multinomial(59_551 - 2 * 11_318, np.full(11_318, 1 / 11_318)) + 2
    sampler = GroupSampler(np.repeat(np.arange(11_318), counts), 68, 11)
    begin = time.perf_counter()
    sampler.plan(3)
    assert time.perf_counter() - begin < 1


def place(label):
    """Where a class is on a circle: no two others are equally far from it."""
    return 0.1 * label + 0.001 * label**2


def neighbor_sampler(counts, batch_size, per_class, neighbors, seed=0):
    """A sampler that has been told where its classes are, and their labels."""
    labels = labels_of(counts)
    sampler = NeighborSampler(labels, batch_size, per_class, neighbors, seed=seed)
    angles = torch.from_numpy(place(labels))
    sampler.survey(torch.stack([angles.cos(), angles.sin()], dim=1), torch.from_numpy(labels))
    return sampler, labels


@given(counts_lists, st.integers(1, 4), st.integers(2, 24), st.integers(1, 4), st.integers(0, 2))
def test_a_class_brings_its_nearest_into_the_batch(counts, per_class, batch_size, neighbors, epoch):
    group = [min(per_class, count) for count in counts]
    if max(group) >= batch_size or sum(group) < batch_size:
        return
    sampler, labels = neighbor_sampler(counts, batch_size, per_class, neighbors)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    for batch, visits in zip(batches, visits_of(batches, labels), strict=True):
        assert len(set(batch)) == batch_size
        classes = [label for label, _ in visits]
        assert len(set(classes)) == len(classes) >= 2
        assert all(size == group[label] for label, size in visits[:-1])
        expected = []
        while len(expected) < len(classes):  # a class drawn, and those of its nearest that are not there yet
            drawn = classes[len(expected)]
            others = sorted(
                set(range(len(counts))) - {drawn}, key=lambda c, d=drawn: abs(place(c) - place(d))
            )
            expected += [drawn, *(c for c in others[:neighbors] if c not in expected)]
        assert classes == expected[: len(classes)]


def test_a_sampler_of_neighbors_resumes_with_them():
    sampler, labels = neighbor_sampler([6] * 9, 8, 2, 2, seed=3)
    batches = iter(sampler)
    first = [next(batches), next(batches)]
    again = NeighborSampler(labels, 8, 2, 2, seed=3)
    again.load_state_dict(sampler.state_dict())
    assert list(again) == list(batches)
    sampler.set_epoch(0)
    assert [batch for batch, _ in zip(sampler, first, strict=False)] == first
    blind = NeighborSampler(labels, 8, 2, 2, seed=3)
    assert next(iter(blind)) != first[0]  # before a survey, classes are drawn alone
    with pytest.raises(ValueError, match=r"the state has neighbors=2, this sampler 1"):
        NeighborSampler(labels, 8, 2, 1, seed=3).load_state_dict(sampler.state_dict())
    with pytest.raises(ValueError, match=r"NeighborSampler\(neighbors=0\): neighbors must be at least 1"):
        NeighborSampler(labels, 8, 2, 0)
    with pytest.raises(ValueError, match=r"vectors: 3 rows; the sampler has 54: embed every row"):
        again.survey(torch.eye(3), torch.arange(3))
