"""The figures of a table: what is swept is found in the papers' tables, and every figure is in both pages."""

from dataclasses import replace

import pytest

from firstpage.compare import find
from firstpage.compare.charts import draw_charts, plot_bars, swept_settings
from firstpage.compare.rendering import write_pages
from firstpage.compare.summary import Measured


def measure(table, values=(60.0, 62.0)):
    """What a table might have measured."""
    history = [{"epoch": 0, "R@1": 50.0}, {"epoch": 20, "R@1": 61.0}]
    cells = {
        seed: {"metrics": {"R@1": value}, "error": "", "history": history}
        for seed, value in enumerate(values)
    }
    return [Measured(row, "paper", cells) for row in table.rows]


def test_swept_settings_of_the_papers_are_found():
    found = swept_settings(measure(find("ranked-list-3-cub")), "R@1")
    assert {name: [*lines["rll"]] for name, lines in found.items()} == {
        "loss.alpha": [1.0, 1.2, 1.4],
        "loss.margin": [0.0, 0.2, 0.4, 0.6, 1.2],
        "loss.temperature": [0.0, 5.0, 10.0, 15.0, 20.0],
        "batch.size": [120.0, 150.0, 165.0, 180.0, 195.0],
    }
    mean, half = found["loss.alpha"]["rll"][1.2]
    assert (mean, half) == (61.0, pytest.approx(12.706, rel=1e-3))
    sizes = swept_settings(measure(find("easy-positive-figure-4-cub")), "R@1")
    assert [*sizes] == ["batch.images_per_class"]
    assert [*sizes["batch.images_per_class"]["epshn"]] == [2.0, 4.0, 8.0, 16.0, 32.0]
    assert swept_settings(measure(find("sampling-wisely-1-cub")), "R@1") == {}


def test_what_was_searched_may_differ_in_a_sweep():
    table = find("ranked-list-3-cub")
    rows = tuple(
        replace(row, recipe=row.recipe.changed([f"optimizer.lr={1e-5 * number}"]), variant="tuned")
        for number, row in enumerate(table.rows, start=1)
    )
    measured = measure(replace(table, rows=rows))
    assert swept_settings(measured, "R@1") == {}
    assert len(swept_settings(measured, "R@1", ["optimizer.lr"])) == 4


def test_bars_have_intervals_and_the_papers_figures():
    table = find("cub-objective")
    axes = plot_bars(measure(table), "R@1").axes[0]
    assert [bar.get_width() for bar in axes.patches] == [61.0] * len(table.rows)
    diamonds = dict(zip((row.name for row in table.rows), axes.lines[-1].get_xdata(), strict=True))
    assert diamonds["Proxy-Anchor"] == 69.9
    assert diamonds["First page"] != diamonds["First page"]  # NaN: the paper has none


def test_figures_are_in_both_pages(tmp_path):
    table = find("ranked-list-6")
    measured = measure(table)
    markdown, page = (path.read_text() for path in write_pages(tmp_path, table, measured))
    charts = draw_charts(table, measured)
    assert [chart.name for chart in charts] == ["bars-paper", "training-paper"]
    assert page.count("<svg") == len(charts)
    for chart in charts:
        assert f"![{chart.caption}]({chart.name}.svg)" in markdown
        assert (tmp_path / f"{chart.name}.svg").read_text().startswith("<?xml")
    assert draw_charts(table, measure(table, ())) == []
