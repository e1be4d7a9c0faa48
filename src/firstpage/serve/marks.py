"""Marks: which results are right and which are wrong, in `feedback.jsonl` of an index."""

import json
import threading
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from firstpage import durable
from firstpage.data.locking import exclusive
from firstpage.data.marks import FILE, QUERIES
from firstpage.errors import UserError

MAX_MARKS = 20_000
MAX_FILE = 2**27  # bytes


@dataclass(frozen=True)
class Mark:
    """A result that somebody called right or wrong: a line of `feedback.jsonl`.

    Attributes:
        time: When, as ISO 8601.
        query: The file of the query; `feedback/….jpg` in the index if it was uploaded.
        query_id: Its id, if it is an image of the index.
        result_id: The id of the result.
        result_path: Its file.
        result_label: Its class.
        right: Whether it is right.
        model: Fingerprint of the model of the index.

    >>> Mark("2025-01-01T00:00:00+00:00", "a.jpg", 3, 7, "b.jpg", "mug", True, "4f2a").right
    True
    """

    time: str
    query: str
    query_id: int | None
    result_id: int
    result_path: str
    result_label: str
    right: bool
    model: str


class MarkFile:
    """The marks of an index. Each change is on the disk when it is made, and leaves no half of a line.

    Args:
        folder: The folder of the index.

    >>> import tempfile
    >>> mark = Mark("2025-01-01T00:00:00+00:00", "a.jpg", 3, 7, "b.jpg", "mug", True, "4f2a")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     marks = MarkFile(folder)
    ...     marks.set(mark), marks.of("a.jpg"), marks.set(mark), marks.all()
    (True, {'b.jpg': True}, None, [])
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._lock = threading.Lock()
        self._state: tuple[int, int] | None = None
        self._marks: dict[tuple[str, str], Mark] = {}

    def all(self) -> list[Mark]:
        """Return all marks, in the order in which they were made.

        Raises:
            UserError: The file is damaged.
        """
        with self._lock:
            return list(self._read().values())

    def of(self, query: str) -> dict[str, bool]:
        """Return which results of a query are right or wrong, by their file."""
        return {mark.result_path: mark.right for mark in self.all() if mark.query == query}

    def set(self, mark: Mark, picture: bytes | None = None) -> bool | None:
        """Add a mark, or change it; the same mark again removes it.

        Args:
            mark: The mark.
            picture: The query as a JPEG, if it was uploaded. It is kept as long as there is a mark of it.

        Returns:
            What the result is marked as from now on; None if the mark was removed.

        Raises:
            UserError: The file is damaged, or there are too many marks.
        """
        key = (mark.query, mark.result_path)
        with self._lock, exclusive(self.folder / QUERIES):
            marks = dict(self._read())
            before = marks.pop(key, None)
            removed = before is not None and before.right == mark.right
            if not removed:
                marks[key] = mark
            if len(marks) > MAX_MARKS:
                raise UserError(f"{self.folder / FILE}: has {MAX_MARKS:,} marks, which is the most")
            stored = mark.query.startswith(f"{QUERIES}/")
            if stored and picture is not None and not removed:
                (self.folder / QUERIES).mkdir(exist_ok=True)
                if not (self.folder / mark.query).exists():
                    durable.write(self.folder / mark.query, picture)
            lines = [json.dumps(asdict(each), ensure_ascii=False) + "\n" for each in marks.values()]
            durable.write(self.folder / FILE, "".join(lines).encode())
            if stored and not any(query == mark.query for query, _ in marks):
                (self.folder / mark.query).unlink(missing_ok=True)
            self._state = None
        return None if removed else mark.right

    def _read(self) -> dict[tuple[str, str], Mark]:
        """Return the marks by query and result, read again if another process has changed them."""
        path = self.folder / FILE
        try:
            status = path.stat()
        except FileNotFoundError:
            return {}
        state = (status.st_mtime_ns, status.st_size)
        if state != self._state:
            with durable.open_regular(path, MAX_FILE) as file:
                lines = file.read().splitlines()
            self._marks = {}
            for number, line in enumerate(lines, 1):
                try:
                    mark = Mark(**json.loads(line))
                    self._marks[mark.query, mark.result_path] = mark
                except (ValueError, TypeError, RecursionError):
                    raise UserError(f"{path}: line {number} is damaged: correct or remove it") from None
            self._state = state
        return self._marks


def now() -> str:
    """Return the time in UTC, as ISO 8601.

    >>> len(now())
    25
    """
    return datetime.now(UTC).isoformat(timespec="seconds")
