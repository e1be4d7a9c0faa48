"""The application: the routes of the page and of its API."""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Any
from urllib.parse import parse_qs

import numpy as np
from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse

import firstpage
from firstpage.errors import UserError
from firstpage.serve import answers, uploads
from firstpage.serve.guard import FAILED, App, Gate, Guard, Refusal, log
from firstpage.serve.heat_map import compare_images
from firstpage.serve.served_index import ServedIndex, Source
from firstpage.serve.site import Site

MAX_ID = 2**62
MAX_RESULTS = 200
SAMPLES = 24
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
KEPT = {"cache-control": "private, max-age=3600"}
PAGE = {
    entry.name: entry.read_bytes()
    for entry in files("firstpage.serve").joinpath("page").iterdir()
    if entry.name.rpartition(".")[2] in TYPES
}

router = APIRouter(responses={"4XX": {"model": answers.ErrorAnswer}, 503: {"model": answers.ErrorAnswer}})

_IMAGE = "An image: the body of the request, whatever its content type. Not with `id`."
_BODY: dict[str, Any] = {
    "requestBody": {
        "description": _IMAGE,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_Number = Annotated[int, Query(alias="index", ge=0, le=1, description="Which index, counted from 0.")]
_Id = Annotated[int | None, Query(ge=0, le=MAX_ID, description="Search by this image of the index.")]
_Of = Annotated[int | None, Query(ge=0, le=1, description="Which index `id` is of. Defaults to `index`.")]
_Box = Annotated[str | None, Query(max_length=100, description="Part of the query: x0,y0,x1,y1 in 0..1.")]
_Result = Annotated[int, Query(ge=0, le=MAX_ID, description="Id of the result.")]


def create_app(
    folders: Sequence[str | os.PathLike[str]],
    *,
    token: str | None = None,
    hosts: Iterable[str] = (),
    threads: int | None = None,
) -> App:
    """Return the search page and its API as an ASGI application.

    Args:
        folders: Of one index, or of two to compare.
        token: What clients have to give as a bearer token, and the page asks for. Defaults to none.
        hosts: Names of the server, besides `localhost` and addresses in digits.
        threads: That search at the same time. Defaults to the number of cores.

    Raises:
        FileNotFoundError: There is no such index.
        UserError: An index is damaged, does not have its model, or the token is too short.

    >>> create_app(["a", "b", "c"])
    Traceback (most recent call last):
    firstpage.errors.UserError: serve: give one index, or two to compare
    """
    gate = None if token is None else Gate(token)
    app = FastAPI(
        title="firstpage",
        version=firstpage.__version__,
        description="Visual search over an index of images.",
        docs_url=None,
        redoc_url=None,
    )
    site = app.state.site = Site(folders, threads)
    app.state.gate = gate
    app.include_router(router)
    for kind in (Refusal, HTTPException, RequestValidationError, UserError, Exception):
        app.add_exception_handler(kind, _refuse)
    return Guard(app, gate=gate, hosts=hosts, metrics=site.metrics, login=PAGE["login.html"])


def _refuse(_: Request, error: Exception) -> Response:
    """Answer an error in one line of JSON."""
    if isinstance(error, Refusal):
        return JSONResponse({"error": str(error)}, error.status, error.headers)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        return JSONResponse({"error": f"{first['loc'][-1]}: {first['msg'].lower()}"[:300]}, 422)
    if isinstance(error, HTTPException):
        return JSONResponse({"error": str(error.detail).lower()}, error.status_code, error.headers)
    if isinstance(error, UserError):  # of the index: for the one who runs the server, not for its clients
        log.error("%s", error)
    return JSONResponse({"error": FAILED}, 500)  # the guard logs any other


def _site(request: Request) -> Site:
    site: Site = request.app.state.site
    return site


_Site = Annotated[Site, Depends(_site)]


@dataclass(frozen=True)
class _Search:
    """What is searched by, and in which index."""

    served: ServedIndex
    origin: ServedIndex  # that the id is of
    id: int | None
    query: uploads.Query

    def source(self) -> Source:
        return self.served.source(self.id, self.query, self.origin)


async def _read_search(
    request: Request,
    site: _Site,
    number: _Number = 0,
    id: _Id = None,
    of: _Of = None,
    box: _Box = None,
) -> _Search:
    region = None if box is None else uploads.parse_box(box)
    site.check_busy()
    content = b""
    if id is None:
        content = await uploads.read_body(request.headers, request.stream(), uploads.MAX_UPLOAD)
    origin = site.index(number if of is None else of)
    return _Search(site.index(number), origin, id, uploads.Query(content, region))


_Searched = Annotated[_Search, Depends(_read_search)]


@router.get("/", include_in_schema=False)
async def _page() -> Response:
    return _file("index.html")


@router.get("/docs", include_in_schema=False)
async def _docs() -> Response:
    return _file("docs.html")


@router.get("/favicon.ico", include_in_schema=False)
async def _icon() -> Response:
    return _file("icon.svg")


@router.get("/static/{name}", include_in_schema=False)
async def _static(name: str) -> Response:
    return _file(name)


def _file(name: str) -> Response:
    if name not in PAGE:
        raise Refusal(404, "no such page")
    return Response(
        PAGE[name], media_type=TYPES[name.rpartition(".")[2]], headers={"cache-control": "no-cache"}
    )


@router.post("/login", include_in_schema=False)
async def _login(request: Request) -> Response:
    body = await uploads.read_body(request.headers, request.stream(), 4096)
    given = parse_qs(body.decode("latin-1")).get("token", [""])[0]
    gate: Gate | None = request.app.state.gate
    if gate is not None and not gate.is_right(given):
        return Response(PAGE["login.html"], 401, media_type="text/html")
    return RedirectResponse("/", 303, {} if gate is None else {"set-cookie": gate.set_cookie()})


@router.get("/healthz", response_class=Response, summary="Whether the server runs.")
async def _healthz() -> Response:
    return Response("ok\n", media_type="text/plain")


@router.get("/metrics", response_class=Response, summary="Counts in Prometheus' text format.")
async def _metrics(site: _Site) -> Response:
    return Response(site.metrics.text(site.gauges()), media_type="text/plain; version=0.0.4")


@router.get("/api/indexes", summary="What is in the indexes.")
async def _indexes(site: _Site) -> list[answers.IndexAnswer]:
    return await site.work(lambda: [_describe(served) for served in site.indexes])


def _describe(served: ServedIndex) -> answers.IndexAnswer:
    index = served.current()
    places = np.linspace(0, len(index) - 1, min(SAMPLES, len(index))).round().astype(np.int64)
    return answers.IndexAnswer(
        served.name,
        len(index),
        f"{index.manifest.model[:8]}-{index.manifest.generation}",
        index.manifest.model,
        index.manifest.dim,
        list(index.columns),
        served.labels(),
        index.ids[places].tolist(),
        len(served.marks.all()),
    )


@router.get("/api/images/{id}", summary="What is known about an image of the index.")
async def _image(
    site: _Site, id: Annotated[int, Path(ge=0, le=MAX_ID)], number: _Number = 0
) -> answers.ImageAnswer:
    def find() -> answers.ImageAnswer:
        served = site.index(number)
        [path] = served.shown_paths([served.value(id, "path")])
        return answers.ImageAnswer(id, served.value(id, "label"), path)

    return await site.work(find)


@router.get("/api/images/{id}/thumbnail", response_class=Response, summary="A small JPEG of an image.")
async def _thumbnail(site: _Site, id: Annotated[int, Path(ge=0, le=MAX_ID)], number: _Number = 0) -> Response:
    served = site.index(number)
    if served.has_thumbnail(id):
        picture = served.thumbnail(id)  # a few bytes of a file: sooner done than handed to a thread
    else:
        picture = await site.work(lambda: served.thumbnail(id))
    return Response(picture, media_type="image/jpeg", headers=KEPT)


@router.get(
    "/api/images/{id}/picture", response_class=Response, summary="A JPEG of at most 1280 pixels a side."
)
async def _picture(
    site: _Site,
    id: Annotated[int, Path(ge=0, le=MAX_ID)],
    number: _Number = 0,
    side: Annotated[int, Query(ge=16, le=uploads.MAX_SIDE)] = 640,
) -> Response:
    served = site.index(number)
    picture = await site.work(lambda: uploads.to_jpeg(served.picture(id, side), side))
    return Response(picture, media_type="image/jpeg", headers=KEPT)


@router.get("/api/search", summary="Search by an image of the index.")
@router.post("/api/search", summary="Search by an uploaded image.", openapi_extra=_BODY)
async def _search(
    site: _Site,
    searched: _Searched,
    k: Annotated[int, Query(ge=1, le=MAX_RESULTS, description="Number of results.")] = 20,
    where: Annotated[str | None, Query(max_length=2000, description="Such as label == 'mug'.")] = None,
    fold: Annotated[float | None, Query(ge=0, le=1, description="Cosine of near-duplicates.")] = None,
) -> answers.SearchAnswer:
    served = searched.served

    def search() -> answers.SearchAnswer:
        begin = time.perf_counter()
        source = searched.source()
        found = served.search(source, k, where or None, fold)
        marks = served.marks.of(source.key)
        paths = served.shown_paths([match.path for match, _ in found])
        results = [
            answers.FoundImage(
                match.id,
                match.score,
                match.probability,
                match.label,
                path,
                match.columns,
                marks.get(match.path),
                first,
            )
            for (match, first), path in zip(found, paths, strict=True)
        ]
        return answers.SearchAnswer(results, round(time.perf_counter() - begin, 6))

    return await site.work(search)


@router.get("/api/explain", summary="Why a result was found, by an image of the index.")
@router.post("/api/explain", summary="Why a result was found, by an uploaded image.", openapi_extra=_BODY)
async def _explain(site: _Site, searched: _Searched, result: _Result) -> answers.Explanation:
    served = searched.served

    def explain() -> answers.Explanation:
        model = served.current().model
        least = 2 * max(model.framing.least)
        source = searched.source()
        image = source.image or served.picture(_own_id(source), least)
        maps = compare_images(model, image, served.picture(result, least))
        return answers.Explanation(
            maps.score,
            maps.exact,
            answers.HeatMap(maps.query.tolist(), maps.query_region),
            answers.HeatMap(maps.result.tolist(), maps.result_region),
        )

    return await site.work(explain)


def _own_id(source: Source) -> int:
    assert source.id is not None  # a source without an image has an id
    return source.id


@router.post("/api/marks", summary="Mark a result; the same mark again removes it.", openapi_extra=_BODY)
async def _mark(
    site: _Site,
    searched: _Searched,
    result: _Result,
    right: Annotated[bool, Query(description="Whether the result is right.")],
) -> answers.MarkAnswer:
    def mark() -> answers.MarkAnswer:
        left = searched.served.mark(searched.source(), result, right)
        return answers.MarkAnswer(left, len(searched.served.marks.all()))

    return await site.work(mark)
