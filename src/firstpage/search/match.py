"""A result of a search."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Match:
    """A result of a search.

    Attributes:
        id: Of the image in the index.
        score: Its cosine with the query, 1 for the same image.
        path: Its file.
        label: Its class.
        columns: Further columns of the table that it came from.
        probability: That it shows the class of the query, if the model was calibrated.

    >>> Match(7, 0.93, "mugs/1.jpg", "mug").label
    'mug'
    """

    id: int
    score: float
    path: str
    label: str
    columns: dict[str, str] = field(default_factory=dict)
    probability: float | None = None


def format_same(probability: float) -> str:
    """Return the probability that two images show the same class, as people read it.

    >>> [format_same(value) for value in (0.971, 0.9996, 0.001)]
    ['same 97 %', 'same >99 %', 'same <1 %']
    """
    if probability > 0.99:
        return "same >99 %"
    return "same <1 %" if probability < 0.01 else f"same {probability * 100:.0f} %"
