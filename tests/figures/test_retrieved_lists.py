"""The picture of retrieved lists: who is shown where, in which frame."""

import numpy as np
import torch

from firstpage.figures import draw_retrieved_lists
from firstpage.figures.retrieved_lists import PLAIN, RIGHT, WRONG


def test_frames_and_order_are_those_of_the_search():
    points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.3], [0.0, 1.0]])
    labels = torch.tensor([0, 1, 0, 0])
    sheet = draw_retrieved_lists(
        points, labels, lambda row: np.full((8, 8, 3), 10 * row, np.uint8), [0], results=3, side=16
    )
    step, gap, frame = 16 + 2 * 2 + 2, 2, 2
    pixels = sheet.load()
    places = [gap, *(2 * gap + step * (1 + n) for n in range(3))]
    assert [pixels[left, gap] for left in places] == [PLAIN, WRONG, RIGHT, RIGHT]
    assert [pixels[left + frame + 4, gap + frame + 4][0] for left in places] == [0, 10, 20, 30]
