"""The page in a real browser: everything that a user does, by mouse, keyboard and phone."""

import base64
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from firstpage.data.marks import FILE
from firstpage.serve import create_app
from support.serving import encoded, picture, running

LOUD = ("error", "warning")
IMAGE = {"name": "mug.png", "mimeType": "image/png", "buffer": encoded(picture(4, (160, 120)))}


@pytest.fixture(scope="module")
def address(folders):
    with running(create_app(folders)) as address:
        yield address


@pytest.fixture
def visit(browser, address):
    """Open the page; nothing may be fetched from elsewhere, and nothing may fail unseen."""
    contexts, wrong = [], []

    def opened(width=1280, scheme="light", compare=False, **options):
        context = browser.new_context(
            viewport={"width": width, "height": 860}, color_scheme=scheme, reduced_motion="reduce", **options
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "console", lambda note: wrong.append(note.text) if note.type in ("error", "warning") else None
        )
        page.on("request", lambda request: wrong.append(request.url) if outside(request.url) else None)
        page.goto(address)
        page.wait_for_selector(".samples .shot")
        if not compare:
            page.evaluate("document.getElementById('compare').checked = false")
        return page

    def outside(url):
        return not url.startswith((address, "blob:", "data:"))

    yield opened
    for context in contexts:
        context.close()
    assert [note for note in wrong if "status of 4" not in note] == []


def upload(page, file=IMAGE):
    searched(page, lambda: page.set_input_files("#file", file))
    page.wait_for_selector(".card")


def found(page, number=0):
    return (
        page.locator(".list")
        .nth(number)
        .locator(".card")
        .evaluate_all("cards => cards.map(card => Number(card.dataset.id))")
    )


def searched(page, act):
    """Do something that searches, and wait for its results."""
    with page.expect_response(lambda answer: "/api/search" in answer.url) as answer:
        act()
    answer.value.finished()
    page.wait_for_function("() => !document.getElementById('results').hasAttribute('aria-busy')")
    return answer.value


def test_upload_results_click_through_and_back(visit):
    page = visit()
    upload(page)
    assert found(page)[0] == 4  # the same picture
    first = page.locator(".card").first
    assert first.locator(".label").inner_text() == "mug"
    assert first.locator(".number").inner_text().startswith(("0.99", "1.00"))
    assert page.locator("#status").inner_text().startswith("12 results in ")
    before = found(page)
    target = before[2]
    searched(page, lambda: page.locator(".shot").nth(2).click())
    assert target not in found(page)
    assert page.url.endswith(f"#0:{target}")
    page.wait_for_function("() => document.getElementById('query-name').textContent.includes('.png')")
    searched(page, page.go_back)
    assert found(page) == before
    page.wait_for_function("() => document.getElementById('query-image').naturalWidth === 160")
    assert page.locator("#query-name").inner_text() == "mug.png"


def test_a_known_probability_is_shown(visit):
    page = visit()

    def calibrated(route):
        answer = route.fetch()
        body = answer.json()
        for result, probability in zip(body["results"], [0.974, 0.997, *[0.003] * 98], strict=False):
            result["probability"] = probability
        route.fulfill(response=answer, json=body)

    page.route("**/api/search**", calibrated)
    upload(page)
    assert page.locator(".same").all_inner_texts()[:3] == ["same: 97 %", "same: >99 %", "same: <1 %"]
    assert page.locator(".same.likely").count() == 2
    assert "same: 97 %" in page.locator(".shot").first.get_attribute("aria-label")


def test_a_pasted_and_a_dropped_image_are_searched_by(visit):
    page = visit()
    content = list(IMAGE["buffer"])
    for kind, holder, name in (
        ("ClipboardEvent", "clipboardData", "paste"),
        ("DragEvent", "dataTransfer", "drop"),
    ):
        act = """([bytes, kind, holder, name]) => {
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array(bytes)], "image.png", { type: "image/png" }));
            dispatchEvent(new window[kind](name, { [holder]: data, cancelable: true }));
        }"""
        searched(page, lambda act=act, names=(kind, holder, name): page.evaluate(act, [content, *names]))
        assert found(page)[0] == 4
        assert page.locator("#query-name").inner_text() == "Pasted image"
        searched(page, lambda: page.locator(".shot").nth(1).click())


def test_a_part_of_the_query_is_dragged_and_given_up_again(visit):
    page = visit()
    upload(page)
    whole = page.locator(".number").all_inner_texts()
    stage = page.locator("#stage").bounding_box()

    def drag():
        page.mouse.move(stage["x"] + 0.25 * stage["width"], stage["y"] + 0.25 * stage["height"])
        page.mouse.down()
        page.mouse.move(stage["x"] + 0.75 * stage["width"], stage["y"] + stage["height"] / 2, steps=3)
        page.mouse.up()

    answer = searched(page, drag)
    box = [float(side) for side in re.search(r"box=([^&]*)", answer.url)[1].replace("%2C", ",").split(",")]
    assert box == pytest.approx([0.25, 0.25, 0.75, 0.5], abs=0.02)
    assert page.locator(".number").all_inner_texts() != whole
    searched(page, page.locator("#whole").click)
    assert page.locator(".number").all_inner_texts() == whole
    page.keyboard.press("c")  # and by keys
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Shift+ArrowUp")
    answer = searched(page, lambda: page.keyboard.press("Enter"))
    assert "box=0.18000%2C0.20000%2C0.78000%2C0.78000" in answer.url
    searched(page, lambda: page.keyboard.press("Escape"))
    assert page.locator(".number").all_inner_texts() == whole


def test_filters_sorting_and_the_number_of_results(visit):
    page = visit()
    upload(page)
    expect = pytest.importorskip("playwright.sync_api").expect

    def ask(label, where, count):
        page.fill("#label", label)
        page.fill("#where", where)
        page.keyboard.press("Enter")
        expect(page.locator(".card")).to_have_count(count)

    ask("pot", "", 4)
    assert sorted(found(page)) == [8, 9, 10, 11]
    ask("pot", "price >= 100", 2)
    assert sorted(found(page)) == [10, 11]
    ask("pot", "price >=", 0)
    expect(page.locator("#error")).to_contain_text("Where: cannot read")
    ask("", "", 12)
    assert page.locator("#error").is_hidden()
    page.select_option("#sort", "path")
    assert found(page) == list(range(12))
    page.select_option("#sort", "score")
    page.select_option("#k", "10")
    expect(page.locator(".card")).to_have_count(10)
    ask("no such label", "", 0)
    expect(page.locator(".none")).to_have_text("Nothing fits the filter.")


def test_near_duplicates_are_folded_and_unfolded(visit):
    page = visit()
    upload(page)
    searched(page, lambda: page.check("#fold"))
    assert len(found(page)) == 11
    button = page.locator(".unfold")
    assert button.get_attribute("aria-label") == "1 near-duplicate"
    button.click()
    assert page.locator(".folded button").count() == 1
    searched(page, page.locator(".folded button").click)
    assert page.url.endswith(("#0:2", "#0:3"))


def test_marks_are_shown_kept_and_undone(visit, folders):
    page = visit()
    upload(page)
    path = folders[0] / FILE
    card = page.locator(".card").nth(1)
    target = found(page)[1]

    def lines():
        return [json.loads(line) for line in path.read_text().splitlines()]

    with page.expect_response("**/api/marks**"):
        card.locator(".mark.wrong").click()
    page.wait_for_selector(".card.is-wrong")
    assert card.locator(".mark.wrong").get_attribute("aria-pressed") == "true"
    assert [(line["result_id"], line["right"]) for line in lines()] == [(target, False)]
    upload(page)  # the same picture again
    page.wait_for_selector(".card.is-wrong")
    page.locator(".shot").nth(1).focus()
    page.keyboard.press("y")
    page.wait_for_selector(".card.is-right")
    assert [line["right"] for line in lines()] == [True]
    page.keyboard.press("y")
    page.wait_for_selector(".card:not(.is-right):nth-child(2)")
    page.wait_for_function("() => document.getElementById('status').textContent.startsWith('Mark removed')")
    assert lines() == []


def drawn(page, name):
    """The pixels of a canvas."""
    address = page.evaluate("name => document.getElementById(name).toDataURL()", name)
    file = io.BytesIO(base64.b64decode(address.partition(",")[2]))
    return np.asarray(Image.open(file).convert("RGB")).astype(int)


def test_why_shows_where_the_score_comes_from(visit):
    page = visit()
    upload(page)
    page.locator(".card .why").nth(1).click()
    page.wait_for_selector("#why[data-ready]")
    assert "add up to the score, exactly" in page.locator("#why-text").inner_text()
    for name in ("why-query", "why-result"):
        page.check("#why-heat")
        hot = drawn(page, name)
        page.uncheck("#why-heat")
        plain = drawn(page, name)
        assert plain.std() > 10
        assert np.abs(hot - plain).mean() > 10
    page.keyboard.press("Escape")
    assert not page.locator("#why").is_visible()


def test_a_text_file_gets_an_error_and_the_page_goes_on(visit):
    page = visit()
    page.set_input_files("#file", {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"only words"})
    page.wait_for_selector("#error:not([hidden])")
    assert page.locator("#error").inner_text().startswith("Not an image of a known kind")
    assert page.locator("#invite").is_visible()
    upload(page)
    assert page.locator("#error").is_hidden()


def test_two_models_side_by_side(visit):
    page = visit(compare=True)
    upload(page)
    assert page.locator(".list h2").count() == 2
    assert page.locator(".list h2").first.inner_text().startswith("first")
    assert len(found(page, 0)) == len(found(page, 1)) == 12
    assert found(page, 0) != found(page, 1)
    page.select_option("#k", "10")
    page.wait_for_function("() => document.querySelectorAll('.card').length === 20")
    only = page.locator(".list").first.locator(".only").count()
    assert only == len(set(found(page, 0)) - set(found(page, 1)))
    page.locator(".list").nth(1).locator(".shot").nth(3).click()
    page.wait_for_function("() => location.hash.startsWith('#1:')")


def test_everything_by_keyboard(visit):
    page = visit()
    upload(page)
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.activeElement === document.body")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "where"
    page.locator(".shot").first.focus()
    columns = page.evaluate(
        "getComputedStyle(document.querySelector('.grid')).gridTemplateColumns.split(' ').length"
    )
    focused = "[...document.querySelectorAll('.card')].indexOf(document.activeElement.closest('.card'))"
    for key, place in (
        ("ArrowRight", 1),
        ("ArrowDown", 1 + columns),
        ("ArrowLeft", columns),
        ("ArrowUp", 0),
        ("End", 11),
        ("Home", 0),
        ("ArrowLeft", 0),
    ):
        page.keyboard.press(key)
        assert page.evaluate(focused) == place, key
    assert page.locator(".shot[tabindex='0']").count() == 1
    page.keyboard.press("w")
    page.wait_for_selector("#why[data-ready]")
    page.keyboard.press("Escape")
    target = found(page)[1]
    page.keyboard.press("ArrowRight")
    searched(page, lambda: page.keyboard.press("Enter"))
    assert page.url.endswith(f"#0:{target}")


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1440, "light")])
def test_it_looks_right_on_a_phone_and_in_the_dark(visit, width, scheme):
    page = visit(width, scheme, compare=width == 1440)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    upload(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    outside = """() => [...document.querySelectorAll("body *")].filter(
        e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".shot, #stage, .visually-hidden")
    ).length"""
    assert page.evaluate(outside) == 0
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (np.mean([int(part) for part in re.findall(r"\d+", light)]) < 60) == (scheme == "dark")
    nameless = """() => [...document.querySelectorAll("button, a, input, select, summary")].filter(
        e => e.offsetParent && !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length)
    ).length"""
    assert page.evaluate(nameless) == 0
    shot = page.locator(".shot").first.bounding_box()
    assert shot["width"] == pytest.approx(shot["height"], abs=1)
    assert shot["width"] > 100
    button = page.locator(".mark.right").first.bounding_box()
    assert min(button["width"], button["height"]) >= (36 if width == 390 else 24)
    page.locator(".card .why").first.click()
    page.wait_for_selector("#why[data-ready]")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    dialog = page.locator("#why").bounding_box()
    assert dialog["x"] >= 0
    assert dialog["x"] + dialog["width"] <= width


def test_the_page_asks_for_the_token(browser, folders):
    with running(create_app(folders[:1], token="correct horse")) as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        page.fill("#token", "wrong wrong")
        page.keyboard.press("Enter")
        page.wait_for_url("**/login")
        page.fill("#token", "correct horse")
        page.keyboard.press("Enter")
        page.wait_for_selector(".samples .shot")
        assert page.evaluate("document.cookie") == ""
        context.clear_cookies()
        page.goto(f"{address}/?token=correct%20horse")
        page.wait_for_selector(".samples .shot")
        assert "token" not in page.url
        context.close()
