"""The page: what is in it, that text stays text, and how it looks in a real browser."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firstpage.data import read
from firstpage.report import embed_test, evaluate_test, images, render_page, write_page, write_report
from firstpage.report.charts import STYLE, plot_series, render_chart
from firstpage.report.lists import select_examples
from firstpage.report.markup import Html, tag
from firstpage.runs import open_run
from support.striped import STRANGE


@pytest.fixture(scope="module")
def pages(runs, tmp_path_factory):
    """The report of one run, and that of two."""
    folder = tmp_path_factory.mktemp("pages")
    one = write_report([runs / "one"], folder / "one.html", cache=runs / "cache", progress=False)
    two = write_report(
        [runs / "one", runs / "two"], folder / "two.html", cache=runs / "cache", progress=False
    )
    return {"one": one, "two": two}


class _Read(HTMLParser):
    """Every tag with its attributes, and all text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.words, self.open = [], [], []
        self.feed(page)

    def handle_starttag(self, name, attributes):
        self.tags.append((name, dict(attributes)))
        if name not in ("meta", "img", "br"):
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_startendtag(self, name, attributes):
        self.tags.append((name, dict(attributes)))

    def handle_data(self, text):
        self.words.append(text)


@pytest.mark.parametrize("name", ["one", "two"])
def test_nothing_is_fetched_and_nothing_runs(pages, name):
    text = pages[name].read_text(encoding="utf-8")
    page = _Read(text)
    assert page.open == []  # every tag is closed, in its order
    kinds = {kind for kind, _ in page.tags}
    assert not kinds & {"script", "link", "iframe", "object", "embed", "base", "form"}
    for _, attributes in page.tags:
        assert not [key for key in attributes if key.startswith("on")]
        for key in ("src", "href", "srcset"):
            assert attributes.get(key, "#").startswith(("#", "data:image/"))
    assert not re.search(r"url\((?!#)|@import", text)
    names = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(names) == len(set(names))
    targets = re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', text)
    assert {one or other for one, other in targets} <= set(names)


def test_strange_names_stay_text(pages):
    page = _Read(pages["one"].read_text(encoding="utf-8"))
    words = set(page.words)
    assert words >= set(STRANGE)
    alts = " ".join(attributes.get("alt", "") for kind, attributes in page.tags if kind == "img")
    assert STRANGE[0] in alts
    assert "alert(1)" not in " ".join(key for _, attributes in page.tags for key in attributes)
    assert any("<b>collapsed</b>" in word for word in page.words)


def test_every_picture_and_figure_is_said_in_words(pages):
    page = _Read(pages["two"].read_text(encoding="utf-8"))
    pictures = [attributes for kind, attributes in page.tags if kind == "img"]
    assert len(pictures) > 50
    assert all(attributes["alt"] for attributes in pictures)
    graphics = [attributes for kind, attributes in page.tags if kind == "svg"]
    assert len(graphics) >= 6
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in graphics)


def test_the_page_is_the_same_every_time(pages, runs, tmp_path):
    again = write_report([runs / "one"], tmp_path / "again.html", cache=runs / "cache", progress=False)
    one, two = (re.sub(r"on \d{4}-\d\d-\d\d", "", path.read_text()) for path in (again, pages["one"]))
    assert one == two


def test_frames_tell_right_from_wrong(pages):
    """Each result's frame, mark and words agree with the classes of query and result."""
    text = pages["one"].read_text(encoding="utf-8")
    lists = text[text.index('id="lists"') : text.index('id="confused"')]
    queries = lists.split('class="query"')[1:]
    assert len(queries) == 12
    for query in queries:
        asked = re.search(r'alt="Query: (.*?)"', query)[1]
        results = re.findall(
            r'<li class="result is-(right|wrong)">.*?alt="Result \d+, (right|wrong): (.*?)".*?>(✓|✗)<', query
        )
        assert len(results) == 10
        for frame, word, found, mark in results:
            assert frame == word == ("right" if found == asked else "wrong")
            assert mark == ("✓" if found == asked else "✗")


@pytest.mark.usefixtures("_undrawn")
def test_runs_of_different_tests_are_shown_one_after_the_other(runs, stripes, tmp_path):
    catalog = read(stripes)
    half = catalog.take(np.flatnonzero(catalog.labels % 2 == 0))
    evaluations = {
        name: evaluate_test(
            embed_test(open_run(runs / name, data, cache=runs / "cache", progress=False)), clustering=False
        )
        for name, data in (("one", catalog), ("two", half))
    }
    text = write_page(evaluations, tmp_path / "page.html").read_text(encoding="utf-8")
    _Read(text)
    count = sum(len(rows) for run in evaluations.values() for rows in _examples(run).values())
    assert text.count('class="query"') == count
    assert "one: 36 queries" in text
    assert f"two: {evaluations['two'].retrieval.queries} queries" in text
    assert "not tested on the same images" in text
    assert "P@1 of the test in training, %" in text  # the second run's own test was another
    assert 'class="best"' not in text  # nobody wins who ran another race


@pytest.mark.usefixtures("_undrawn")
def test_a_run_has_one_color_throughout_the_page(runs, stripes, tmp_path):
    catalog = read(stripes)
    half = catalog.take(np.flatnonzero(catalog.labels % 2 == 0))
    evaluations = {
        name: evaluate_test(
            embed_test(open_run(runs / run, data, cache=runs / "cache", progress=False)), clustering=False
        )
        for name, run, data in (("A", "one", catalog), ("B", "one", half), ("C", "two", catalog))
    }
    text = write_page(evaluations, tmp_path / "page.html").read_text(encoding="utf-8")
    shown = re.findall(r"var\(--run-(\d)\)\"[^>]*></span><[^>]*>(\w)<", text)
    assert set(shown) == {("0", "A"), ("1", "B"), ("2", "C")}
    lists = text[text.index('id="lists"') : text.index('id="confused"')]
    found = re.findall(r"var\(--run-(\d)\)\"[^>]*></span><[^>]*>(\w)<", lists)
    assert {name for _, name in found} == {*"ABC"}
    headings = re.findall("<h3>(.*?)</h3>", lists)
    assert headings[::3] == ["Best queries of <bdi>A, C</bdi>", "Best queries of <bdi>B</bdi>"]
    assert len(set(headings)) == 6


@pytest.mark.usefixtures("_undrawn")
def test_curves_of_a_fair_run_are_those_of_its_held_out_classes(runs, tmp_path):
    test = embed_test(open_run(runs / "two", cache=runs / "cache", progress=False))
    text = write_page({"two": evaluate_test(test, clustering=False)}, tmp_path / "page.html").read_text(
        "utf-8"
    )
    assert "P@1 of the selection, %" in text
    assert "P@1 of the test, %" not in text


@pytest.mark.usefixtures("_undrawn")
def test_how_the_best_epoch_was_chosen_is_as_the_run_was_trained(runs, tmp_path):
    test = embed_test(open_run(runs / "two", protocol="paper", cache=runs / "cache", progress=False))
    text = write_page({"two": evaluate_test(test, clustering=False)}, tmp_path / "page.html").read_text(
        "utf-8"
    )
    assert "fair: the best epoch was selected on images that are not in the test, of" in text
    assert "paper: the best epoch" not in text


def _examples(evaluation):
    return select_examples(evaluation.retrieval.per_query["mAP"], evaluation.retrieval.labels, 4)


@pytest.mark.usefixtures("_undrawn")
def test_a_run_that_was_killed_says_so(runs, tmp_path):
    shutil.copytree(runs / "one", tmp_path / "killed")
    about = json.loads((tmp_path / "killed" / "run.json").read_text())
    del about["result"]
    (tmp_path / "killed" / "run.json").write_text(json.dumps(about))
    test = embed_test(open_run(tmp_path / "killed", cache=runs / "cache", progress=False))
    text = write_page({"killed": evaluate_test(test, clustering=False)}, tmp_path / "page.html").read_text(
        "utf-8"
    )
    last = max(line["step"] for line in test.record.log)
    assert f"2 epochs. Not finished: the log ends at step {last}." in text
    assert "of the test in training" not in text


def test_a_collapsed_run_is_reported_too(runs):
    test = embed_test(open_run(runs / "one", cache=runs / "cache", progress=False))
    collapsed = replace(test, queries=torch.eye(1, 16).repeat(len(test.queries), 1))
    assert "laid out" in render_page({"collapsed": evaluate_test(collapsed)})


@pytest.mark.usefixtures("_undrawn")
def test_a_saved_model_is_reported_without_a_run(runs, stripes, tmp_path):
    folders = [runs / "one" / "best", runs / "two"]
    path = write_report(folders, tmp_path / "model.html", data=stripes, cache=runs / "cache", progress=False)
    page = _Read(path.read_text(encoding="utf-8"))
    assert {"best", "two", "small, 16 dimensions, avg pooling"} <= set(page.words)
    assert "Settings that differ" not in page.words


@pytest.mark.usefixtures("_undrawn")
def test_without_opentsne_the_map_is_pca_and_says_so(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(images, "find_spec", lambda name: None)
    path = write_report(
        [runs / "one"], tmp_path / "pca.html", cache=runs / "cache", clustering=False, progress=False
    )
    assert "by its two principal components (install firstpage[tsne] for t-SNE)" in path.read_text()
    assert "NMI" not in _Read(path.read_text(encoding="utf-8")).words  # pixels in base64 may spell anything


def test_principal_positions_keep_what_differs_most():
    angles = torch.linspace(0, 6, 50, dtype=torch.float64)
    plane = torch.stack([3 * angles.cos(), angles.sin()], 1)
    turn = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))[0][:2]
    found = torch.from_numpy(images.principal_positions(plane @ turn + 5))
    torch.testing.assert_close(torch.cdist(found, found), torch.cdist(plane, plane))
    assert images.principal_positions(torch.randn(5, 1)).shape == (5, 2)


def test_best_median_and_worst_are_what_they_say():
    scores = torch.arange(90.0).roll(17)
    labels = torch.arange(90) % 30
    found = select_examples(scores, labels, 3)
    assert scores[found["best"]].tolist() == [89, 88, 87]
    assert scores[found["worst"]].tolist() == [0, 1, 2]
    assert all(42 <= score <= 47 for score in scores[found["median"]].tolist())
    one = select_examples(torch.zeros(5), torch.zeros(5, dtype=torch.long), 3)
    assert [len(rows) for rows in one.values()] == [1, 1, 1]  # one of each class


@pytest.mark.parametrize("name", ["$x$ and _y", "_hidden", "$", "<b>&", "日本"])
def test_a_run_of_any_name_is_in_the_legend(name):
    drawn = render_chart(plot_series({name: ([0, 1], [0, 1]), "other": None}, "loss"), name, name)
    graphic = drawn[drawn.index("<svg") : drawn.index("</svg>") + len("</svg>")]
    assert name in [word.strip() for word in _Read(graphic).words]
    assert "<b>" not in drawn


def test_a_run_keeps_its_color_where_another_logged_nothing():
    figure = plot_series({"one": None, "two": ([0, 1], [0.0, 0.0])}, "idle")
    (line,) = figure.axes[0].lines
    assert line.get_color() == STYLE.colors[1]
    assert figure.axes[0].get_ylim()[0] == 0  # a share is never below


@given(st.text(), st.text())
def test_text_never_becomes_markup(content, value):
    page = _Read(tag("p", content, title=value, class_="x") + tag("br"))
    assert [kind for kind, _ in page.tags] == ["p", "br"]
    assert set(page.tags[0][1]) == {"title", "class"}
    (tag("p", content) + Html("x")).encode("utf-8")
    if content.isprintable():
        assert "".join(page.words) == content


@pytest.mark.parametrize("name", ["one", "two"])
@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1440, "dark")])  # layout; colors
def test_it_looks_right_in_a_browser(browser, pages, name, width, scheme):
    context = browser.new_context(
        viewport={"width": width, "height": 844}, color_scheme=scheme, offline=True, java_script_enabled=True
    )
    page, messages, requests = context.new_page(), [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(pages[name].as_uri())
    assert messages == []
    assert [url for url in requests if not url.startswith("data:")] == [pages[name].as_uri()]
    assert page.evaluate("document.images.length") > 50
    assert page.evaluate("[...document.images].filter(i => !(i.complete && i.naturalWidth > 0)).length") == 0
    assert page.evaluate("document.documentElement.scrollWidth") == width
    # Nothing sticks out of the page but inside a part that scrolls by itself.
    assert (
        page.evaluate("""() => [...document.querySelectorAll("body *")].filter(e =>
        e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll, pre, nav, svg")).length""")
        == 0
    )
    headings = page.locator("h2").all_inner_texts()
    first = "Side by side" if name == "two" else "Metrics"
    assert headings[:3] == [first, "Curves", "Health during training"]
    assert {
        "Retrieved lists",
        "Confused classes",
        "Worst classes",
        "Map of the embedding",
        "Run details",
    } <= set(headings)
    for word in ("P@1", "MAP@R", "AUC", "NMI"):
        assert page.locator("tbody th", has_text=re.compile(f"^{word}$")).first.is_visible()
    for picture in page.locator(".result .thumb").all()[:10]:
        box = picture.bounding_box()
        assert box["width"] == pytest.approx(box["height"], abs=1)
        assert box["width"] > 40
    assert _contrast(page, "body") > 7
    assert all(
        _contrast(page, part) > 4.5
        for part in (".note", "thead th", ".right-word", ".wrong-word", "figcaption")
    )
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (np.mean([int(part) for part in re.findall(r"\d+", dark)]) < 60) == (scheme == "dark")
    ink = page.evaluate("getComputedStyle(document.querySelector('figure svg text')).fill")
    assert (np.mean([int(part) for part in re.findall(r"\d+", ink)]) > 120) == (scheme == "dark")
    context.close()


def _contrast(page, selector):
    """The contrast of an element's text with what is behind it, as WCAG measures it."""
    ink, paper = page.evaluate(
        """selector => {
            const first = document.querySelector(selector);
            let ground = first;
            while (/, 0\\)$/.test(getComputedStyle(ground).backgroundColor)) ground = ground.parentElement;
            return [getComputedStyle(first).color, getComputedStyle(ground).backgroundColor];
        }""",
        selector,
    )
    lights = []
    for color in (ink, paper):
        parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)
