"""A copy of an index's vectors in Milvus, which then finds the nearest ones.

The folder stays what counts. A change is made there first, and then here: images that are gone are deleted,
new ones inserted. Ids are never used twice, so that doing it again does no harm. The row with the id -1 says
which images are here; it is changed to "changing" before them, and to what they are afterwards.
"""

import itertools
import logging
import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from torch import Tensor

from firstpage.errors import UserError, one_line
from firstpage.search.engines import EXACT, EngineError
from firstpage.search.index_folder import ROWS, VECTORS, Manifest, Mirror, column_names, contents
from firstpage.search.milvus_expressions import milvus_columns, milvus_filter
from firstpage.search.vectors import Vectors

TOKEN = "FIRSTPAGE_MILVUS_TOKEN"
TIMEOUT = 30.0  # seconds for one request
BATCH = 1000  # rows of one request
MOST = 16_384  # results that Milvus returns
STATE, CHANGING = -1, "changing"  # the id of the row that says which images are here
TEXT = 65_535  # bytes of a string


def new_mirror(address: str, folder: Path) -> Mirror:
    """Return where a new index is mirrored: a new collection at an address.

    Args:
        address: `http://HOST:PORT` of a Milvus server, or the path of a `.db` of Milvus Lite.
        folder: The folder of the index. A path in it is kept relative to it.

    Raises:
        UserError: It is neither, or has a password in it.

    >>> new_mirror("http://localhost:19530", Path("birds")).address
    'http://localhost:19530'
    >>> new_mirror("http://me:secret@localhost:19530", Path("birds"))
    Traceback (most recent call last):
    firstpage.errors.UserError: milvus: leave the password out, it would be stored; set FIRSTPAGE_MILVUS...
    """
    if address.startswith(("http://", "https://")):
        if "@" in urlsplit(address).netloc:
            raise UserError(f"milvus: leave the password out, it would be stored; set {TOKEN}=user:password")
    elif not address.endswith(".db"):
        raise UserError(f"milvus={address!r}: must be http://HOST:PORT, or a path that ends in .db")
    else:
        path, home = os.path.abspath(address), os.path.abspath(folder)
        address = os.path.relpath(path, home) if Path(path).is_relative_to(home) else path
    return Mirror(address, f"firstpage_{secrets.token_hex(6)}")


class MilvusMirror:
    """The collection of Milvus that mirrors an index.

    Args:
        folder: The folder of the index.
        manifest: Its manifest.

    Raises:
        EngineError: pymilvus is not installed, or Milvus does not answer.

    >>> MilvusMirror(Path("birds"), Manifest(1, "4f2a", 8, "float32", milvus=Mirror("birds.txt", "birds")))
    Traceback (most recent call last):
    firstpage.search.engines.EngineError: Milvus at birds.txt: ...
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        try:
            import pymilvus
        except ImportError:
            raise EngineError("pymilvus is not installed: pip install 'firstpage[milvus]'") from None
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # what it logs is raised as well
        self._pymilvus, self._folder, self._manifest = pymilvus, folder, manifest
        self._name, self.address = manifest.milvus.collection, manifest.milvus.address
        self.until = manifest.next_id
        self._expected = contents(manifest)
        uri = self.address if "://" in self.address else str(folder / self.address)
        token = os.environ.get(TOKEN, "")
        self._client: Any = self._ask(lambda: pymilvus.MilvusClient(uri, token=token, timeout=TIMEOUT))
        if self._exists():  # a server that was started again may not have it in memory
            self._ask(lambda: self._client.load_collection(self._name, timeout=TIMEOUT))

    def state(self) -> tuple[str, list[str]]:
        """Return which images are here, as `contents` says it, and what their columns are called."""
        if not self._exists():
            return "", []
        rows = self._query(f"id == {STATE}", ["label", "columns"])
        return (rows[0]["label"], list(rows[0]["columns"]["names"])) if rows else ("", [])

    def candidates(
        self, queries: Tensor, k: int, allowed: np.ndarray | None, where: str | None
    ) -> np.ndarray:
        """Return the ids of the k nearest of each query, and one or two more: [Q, C]."""
        count = k + 2  # the row of the state may be among them
        if count > MOST:
            return np.zeros((len(queries), 0), np.int64)
        if not self._exists():
            raise self._behind()
        ids = np.full((len(queries), count), STATE)
        for start in range(0, len(queries), 100):
            found = self._ask(
                lambda start=start: self._client.search(  # type: ignore[misc]
                    self._name,
                    data=list(queries[start : start + 100].numpy()),
                    limit=count,
                    filter=milvus_filter(where) if where else "",
                    output_fields=["id"],
                    search_params={"metric_type": "IP", "params": {"ef": max(256, 2 * count)}},
                    consistency_level="Strong",
                    timeout=TIMEOUT,
                )
            )
            for row, hits in enumerate(found, start):
                ids[row, : len(hits)] = [hit["id"] for hit in hits]
        # Asked for afterwards: whoever changes the images says so before.
        if self.state()[0] != self._expected:
            raise self._behind()
        return ids

    def sync(self, vectors: Vectors, since: str = "", gone: Iterable[int] = (), first: int = 0) -> None:
        """Bring the collection up to the index.

        Args:
            vectors: The vectors of the index.
            since: What was here before the last change; if it is, only that change is made.
            gone: The ids that the change removed.
            first: The first id that it added.

        Raises:
            EngineError: Milvus does not answer; sync again later.
        """
        state, names = self.state()
        columns, ids = column_names(self._manifest), vectors.ids[vectors.kept]
        if state == self._expected:
            return
        if not state:
            self._create(len(ids))
        self._tell(CHANGING, names)
        marks = [
            segment.files[VECTORS][:16] + segment.files[ROWS][:16] for segment in self._manifest.segments
        ]
        number = np.full(self.until, -1)  # of the segment of each id
        for place, part in enumerate(vectors.parts):
            number[part.ids[part.kept]] = place
        delete, insert = np.array(list(gone), np.int64), ids[ids >= first]
        if state != since or not since:
            delete, insert, first = *self._compare(number, marks), 0
        if names != columns and state:  # every row has every column
            insert, first = ids, 0
        self._delete(delete.tolist())
        wanted = np.zeros(self.until, bool)
        wanted[insert] = True
        entities = (
            {
                "id": row["id"],
                "vector": vector,
                "label": _text(row["label"]),
                "path": _text(row["path"]),
                "columns": milvus_columns({name: row["columns"].get(name, "") for name in columns}),
                "segment": marks[number[row["id"]]],
            }
            for row, vector in (vectors.images(first) if len(insert) else ())
            if wanted[row["id"]]
        )
        while batch := list(itertools.islice(entities, BATCH)):
            self._upsert(batch)
        self._tell(self._expected, columns)

    def _behind(self) -> EngineError:
        remedy = f"firstpage index sync {self._folder} copies them"
        return EngineError(f"Milvus at {self.address}: does not have the images of this index: {remedy}")

    def _exists(self) -> bool:
        return bool(self._ask(lambda: self._client.has_collection(self._name, timeout=TIMEOUT)))

    def _create(self, count: int) -> None:
        kinds, client = self._pymilvus.DataType, self._client
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", kinds.INT64, is_primary=True)
        schema.add_field("vector", kinds.FLOAT_VECTOR, dim=self._manifest.dim)
        schema.add_field("label", kinds.VARCHAR, max_length=TEXT)
        schema.add_field("path", kinds.VARCHAR, max_length=TEXT)
        schema.add_field("columns", kinds.JSON)
        schema.add_field("segment", kinds.VARCHAR, max_length=64)
        index = client.prepare_index_params()
        if count <= EXACT:
            index.add_index("vector", index_type="FLAT", metric_type="IP")
        else:
            graph = {"M": 32, "efConstruction": 128}
            index.add_index("vector", index_type="HNSW", metric_type="IP", params=graph)
        options = {"consistency_level": "Strong", "timeout": TIMEOUT}
        self._ask(lambda: client.create_collection(self._name, schema=schema, index_params=index, **options))

    def _tell(self, state: str, names: list[str]) -> None:
        vector = np.zeros(self._manifest.dim, np.float32)
        about = {"label": state, "path": "", "segment": "", "columns": {"names": names}}
        self._upsert([{"id": STATE, "vector": vector} | about])

    def _upsert(self, rows: list[dict[str, Any]]) -> None:
        self._ask(lambda: self._client.upsert(self._name, rows, timeout=TIMEOUT))

    def _compare(self, number: np.ndarray, marks: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids here that the index has not, and those of the index that are not here as they are.

        Args:
            number: [until] The segment of each id, -1 for ids that are not in the index.
            marks: What tells a segment from those of any other index.
        """
        there, other = np.zeros(self.until, bool), np.zeros(self.until, bool)
        for start in range(0, self.until, MOST):
            stop = min(start + MOST, self.until)
            for row in self._query(f"id >= {start} and id < {stop}", ["id", "segment"]):
                place = number[row["id"]]
                there[row["id"]] = place >= 0 and row["segment"] == marks[place]
                other[row["id"]] = place < 0
        while later := [row["id"] for row in self._query(f"id >= {self.until}", ["id"])]:
            self._delete(later)  # by a copy of the index that has grown
        return np.flatnonzero(other), np.flatnonzero(~there & (number >= 0))

    def _delete(self, ids: list[int]) -> None:
        for start in range(0, len(ids), BATCH):
            batch = ids[start : start + BATCH]
            self._ask(lambda batch=batch: self._client.delete(self._name, ids=batch, timeout=TIMEOUT))  # type: ignore[misc]

    def _query(self, where: str, fields: list[str]) -> list[dict[str, Any]]:
        options = {"limit": MOST, "consistency_level": "Strong", "timeout": TIMEOUT}
        rows = self._ask(
            lambda: self._client.query(self._name, filter=where, output_fields=fields, **options)
        )
        return list(rows)

    def _ask(self, request: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Return the answer to a request; whatever goes wrong with it is an `EngineError`."""
        try:
            return request()
        except Exception as error:  # of gRPC, pymilvus and Milvus Lite, which have no common class
            told = ValueError(getattr(error, "message", None) or error)
            raise EngineError(f"Milvus at {self.address}: {one_line(told)}") from None


def _text(text: str) -> str:
    return text.encode("utf-8", "replace")[:TEXT].decode("utf-8", "ignore")
