"""What the API answers; FastAPI describes it from here."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class FoundImage:
    """A result of a search.

    Attributes:
        id: Of the image in the index.
        score: Its cosine with the query.
        probability: That it shows the same as the query, if the model was calibrated.
        label: Its class.
        path: Its file, within the folder of all images.
        columns: Further columns of the table that it came from.
        mark: Whether it was marked as right; null if it was not marked.
        duplicate_of: The id of an earlier result that it is a near-duplicate of.

    >>> FoundImage(7, 0.93, None, "mug", "mugs/1.jpg").mark
    """

    id: int
    score: float
    probability: float | None
    label: str
    path: str
    columns: dict[str, str] = field(default_factory=dict)
    mark: bool | None = None
    duplicate_of: int | None = None


@dataclass(frozen=True)
class SearchAnswer:
    """The results of a search, the best first.

    Attributes:
        results: The results.
        seconds: Time of the search, the model included.

    >>> SearchAnswer([], 0.01).results
    []
    """

    results: list[FoundImage]
    seconds: float


@dataclass(frozen=True)
class IndexAnswer:
    """What is in an index.

    Attributes:
        name: Of its folder.
        images: Their number.
        version: Changes with the index.
        model: Fingerprint of its model.
        dim: Dimensions of its vectors.
        columns: What filters can use.
        labels: How many images each label has; the most frequent ones.
        samples: Ids of some images.
        marks: Number of marks.

    >>> IndexAnswer("birds", 0, "1", "4f2a", 128, ["label"], {}, [], 0).name
    'birds'
    """

    name: str
    images: int
    version: str
    model: str
    dim: int
    columns: list[str]
    labels: dict[str, int]
    samples: list[int]
    marks: int


@dataclass(frozen=True)
class ImageAnswer:
    """What is known about an image.

    Attributes:
        id: Of the image in the index.
        label: Its class.
        path: Its file, within the folder of all images.

    >>> ImageAnswer(7, "mug", "mugs/1.jpg").label
    'mug'
    """

    id: int
    label: str
    path: str


@dataclass(frozen=True)
class HeatMap:
    """How much each part of an image adds to the score.

    Attributes:
        parts: Rows of numbers.
        region: What they cover, as x0, y0, x1, y1 in shares of width and height.

    >>> HeatMap([[0.5]], (0, 0, 1, 1)).parts
    [[0.5]]
    """

    parts: list[list[float]]
    region: tuple[float, float, float, float]


@dataclass(frozen=True)
class Explanation:
    """Why a result was found.

    Attributes:
        score: Its cosine with the query.
        exact: Whether the parts of each image add up to the score.
        query: Of the query, or of its box.
        result: Of the result.

    >>> Explanation(0.5, True, HeatMap([[0.5]], (0, 0, 1, 1)), HeatMap([[0.5]], (0, 0, 1, 1))).exact
    True
    """

    score: float
    exact: bool
    query: HeatMap
    result: HeatMap


@dataclass(frozen=True)
class MarkAnswer:
    """What a result is marked as from now on.

    Attributes:
        right: Whether it is right; null if the mark was removed.
        marks: Number of marks of the index.

    >>> MarkAnswer(True, 1).right
    True
    """

    right: bool | None
    marks: int


@dataclass(frozen=True)
class ErrorAnswer:
    """What went wrong, in one line.

    >>> ErrorAnswer("no such image").error
    'no such image'
    """

    error: str
