"""The report in a real browser: it draws, its maps are linked, and names are only names."""

import shutil
from collections import Counter
from itertools import product

import numpy as np
import pandas as pd
import pytest

import cometric as cm

pytest.importorskip("plotly")
pytest.importorskip("jinja2")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from cometric import report  # noqa: E402

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser: none of {', '.join(NAMES)}")
FLAGS = (
    "--no-sandbox --headless --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)

N, M = 120, 80
LABELS = np.repeat(["early", "middle", "late"], [60, 40, 20])

# Whatever ran would set `ran`; none of these may become an element either.
OPENINGS = ("", '">', "'>", "</script>", "</title>", "-->", "</bdi></td>", "`${", "{{", "%{x}")
PAYLOADS = (
    "<script>window.ran=1;alert(1)</script>",
    "<img src=x onerror=window.ran=1;alert(1)>",
    "<svg onload=window.ran=1;alert(1)>",
    "<svg><script>window.ran=1</script></svg>",
    "<iframe srcdoc='<script>parent.ran=1</script>'></iframe>",
    '<a href="javascript:window.ran=1">x</a>',
    "<b>bold</b><br><i>it</i><sup>2</sup>",
    "<span style='position:fixed;inset:0'>over</span>",
    "<style>body{display:none}</style>",
    "<math><mi xlink:href='javascript:alert(1)'>x</mi></math>",
    "<object data='data:text/html,<script>alert(1)</script>'></object>",
    "<form action=//x.test><input name=a autofocus onfocus=alert(1)></form>",
    "<meta http-equiv=refresh content='0;url=//x.test'>",
    "<base href=//x.test>",
    "<link rel=stylesheet href=//x.test/a.css>",
    "<template><script>window.ran=1</script></template>",
    "<video><source onerror=window.ran=1></video>",
    "<details open ontoggle=window.ran=1>",
)
ODD = (
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#x3c;img src=x onerror=alert(1)&#x3e;",
    "javascript:alert(1)",
    "__proto__",
    "constructor",
    "toString",
    "\\u003cscript\\u003ealert(1)",
    "\u202eevil\u2066",
    "line\u2028separator\u2029paragraph",
    "tab\tnewline\nreturn\r",
    "nul\x00inside",
    "lone \ud800 surrogate",
    "\U0001f9ec" * 8,
    "e" + "\u0301" * 50,
    "x" * 5000,
    "$\\sqrt{2}$",
    "NaN",
    "-0",
    "=cmd|' /C calc'!A0",
    "%{customdata}%{y:.3f}",
)
HOSTILE = [opening + payload for opening, payload in product(OPENINGS, PAYLOADS)] + list(ODD)


@pytest.fixture(scope="module")
def result():
    """Three groups of samples, each with features of its own."""
    rng = np.random.default_rng(0)
    kinds = np.unique(LABELS, return_inverse=True)[1]
    own = kinds[:, None] == np.arange(M) % 3
    X = rng.random((N, M)) * np.where(own, 1.0, 0.1)
    frame = pd.DataFrame(
        X, index=[f"cell {i}" for i in range(N)], columns=[f"gene {k}" for k in range(M)]
    )
    return cm.learn(frame, eps=np.inf, tau=0.1)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=BROWSER, args=FLAGS.split())
        yield launched
        launched.close()


class Visit:
    """A page, and everything it should not have done."""

    def __init__(self, browser, path, width=1280, height=900):
        self.page = browser.new_page(viewport={"width": width, "height": height})
        self.faults = []
        self.page.on("console", lambda message: self.faults.append(message.text))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("dialog", self._dismiss)
        self.page.on("request", lambda request: self._log(request.url, path.as_uri()))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("body[data-ready]")

    def _dismiss(self, dialog):
        self.faults.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def _log(self, url, own):
        if url != own:
            self.faults.append(f"request {url}")

    def marker(self, side, what):
        return self.page.evaluate(f"document.getElementById('{side}-map').data[0].marker.{what}")

    def told(self):
        """First column of the first table of what was selected."""
        return self.page.locator("#selection table").first.locator("tbody th").all_inner_texts()

    def press(self, side, label):
        self.page.locator(f"#{side}-groups button", has_text=label).click()

    def search(self, text):
        self.page.locator("#search").fill(text)
        self.page.locator("#search").press("Enter")

    def tags(self):
        return Counter(
            self.page.evaluate("[...document.querySelectorAll('*')].map((e) => e.tagName)")
        )


@pytest.fixture(scope="module")
def file(result, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "r.html"
    return report.write(result, path, labels=LABELS, certificate=result.certify())


@pytest.fixture(scope="module")
def opened(browser, file):
    return Visit(browser, file)


@pytest.fixture
def visit(opened):
    yield opened
    assert opened.faults == []
    if opened.page.locator("#clear").is_enabled():
        opened.page.locator("#clear").click()


def test_both_maps_and_the_convergence_are_drawn(visit, result):
    for side, count in (("samples", N), ("features", M)):
        assert visit.page.locator(f"#{side}-map .scatterlayer path.point").count() == count
    drawn = visit.page.locator("#convergence .scatterlayer path.point").count()
    assert drawn == sum(np.isfinite(line.residual) for line in result.history)


def test_the_word_tolerance_covers_no_point(visit):
    word = visit.page.locator("#convergence .annotation").bounding_box()
    for point in visit.page.locator("#convergence .scatterlayer path.point").all():
        dot = point.bounding_box()
        assert dot["x"] > word["x"] + word["width"] or dot["y"] + dot["height"] < word["y"]


def test_a_group_of_samples_lights_up_the_features_that_carry_it(visit, result):
    visit.press("samples", "late")
    A = result.problem.samples.full.toarray()
    inside, outside = A[LABELS == "late"].mean(axis=0), A[LABELS != "late"].mean(axis=0)
    floor = report.SHRINK / M
    ratio = np.log2((inside + floor) / (outside + floor))
    assert np.allclose(visit.marker("features", "color"), ratio, atol=0.01)
    told = [int(name.split()[1]) for name in visit.told()]
    assert {k % 3 for k in told} == {1}  # "late" is the second label in the alphabet
    assert ratio[told].min() >= np.sort(ratio)[-len(told) - 1] - 0.01
    faded = np.array(visit.marker("samples", "opacity")) < 0.5
    assert np.array_equal(faded, LABELS != "late")
    button = visit.page.locator("#samples-groups button", has_text="late")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()  # once more lets go
    assert visit.page.locator("#selection").inner_text() == ""


def test_a_group_of_features_lights_up_the_samples_that_carry_it(visit, result):
    button = visit.page.locator("#features-groups button").first
    button.click()
    chosen = np.array(visit.marker("features", "opacity")) > 0.5
    assert chosen.sum() == int(button.locator("small").inner_text())
    (kind,) = {k % 3 for k in np.flatnonzero(chosen)}  # the clusters are the groups
    B = result.problem.features.full.toarray()
    floor = report.SHRINK / N
    ratio = np.log2((B[chosen].mean(axis=0) + floor) / (B[~chosen].mean(axis=0) + floor))
    assert np.allclose(visit.marker("samples", "color"), ratio, atol=0.01)
    told = {LABELS[int(name.split()[1])] for name in visit.told()}
    assert told == {np.unique(LABELS)[kind]}


def test_points_drawn_around_are_selected(visit):
    dots = visit.page.locator("#samples-map .scatterlayer path.point").evaluate_all(
        "all => all.map((e) => { const b = e.getBoundingClientRect();"
        " return [b.x + b.width / 2, b.y + b.height / 2]; })"
    )
    box = visit.page.locator("#samples-map .nsewdrag").bounding_box()
    left, top = box["x"] + 2, box["y"] + 2
    middle, bottom = float(np.median(dots, axis=0)[0]), box["y"] + box["height"] - 2
    visit.page.mouse.move(left, top)
    visit.page.mouse.down()
    for x, y in ((middle, top), (middle, bottom), (left, bottom), (left, top + 1)):
        visit.page.mouse.move(x, y, steps=8)
    visit.page.mouse.up()
    visit.page.wait_for_selector("#selection table")
    bright = np.array(visit.marker("samples", "opacity")) > 0.5
    # Plotly draws markers where the data are, to a fraction of a pixel.
    clear = np.abs(np.array(dots)[:, 0] - middle) > 1
    assert np.array_equal(bright[clear], (np.array(dots)[:, 0] < middle)[clear])


def test_a_point_can_be_pressed_and_is_named_when_hovered(visit):
    dot = visit.page.locator("#features-map .scatterlayer path.point").nth(7)
    box = dot.bounding_box()
    visit.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    visit.page.wait_for_selector("#features-map .hoverlayer text")
    hovered = visit.page.locator("#features-map .hoverlayer text").first.text_content()
    visit.page.mouse.down()
    visit.page.mouse.up()
    visit.page.wait_for_selector("#selection table")
    title = visit.page.locator("#selection h3").inner_text()
    assert title.startswith("1 feature: gene ")
    assert hovered.startswith(title.removeprefix("1 feature: "))


def test_search_finds_names_whatever_their_case(visit, result):
    visit.search("GENE 17")
    assert visit.page.locator("#selection h3").inner_text() == "1 feature: gene 17"
    nearest = visit.page.locator("#selection table").nth(1).locator("tbody th").all_inner_texts()
    order = np.argsort(result.features[17], kind="stable")[1:9]
    assert nearest == [f"gene {k}" for k in order]
    visit.search("cell 3")
    assert visit.page.locator("#selection h3").inner_text() == "1 sample: cell 3"
    visit.search("no such thing")
    assert visit.page.locator("#selection").inner_text() == 'No item is named "no such thing".'
    assert not visit.page.locator("#clear").is_enabled()


def test_the_keyboard_is_enough(visit):
    visit.page.locator("#search").focus()
    visit.page.locator("#samples-groups button").first.focus()
    visit.page.keyboard.press("Enter")
    assert visit.page.locator("#selection h3").inner_text() == "60 samples: early"
    visit.page.keyboard.press("Escape")
    assert visit.page.locator("#selection").inner_text() == ""


def test_a_phone_shows_all_of_it(browser, file):
    visit = Visit(browser, file, width=390, height=844)
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 390
    first, second = (
        visit.page.locator(f"#{side}-map").bounding_box() for side in ("samples", "features")
    )
    assert second["y"] > first["y"] + first["height"]  # one below the other
    assert visit.faults == []
    visit.page.close()


def test_hostile_names_are_only_names(browser, result, tmp_path, monkeypatch):
    """200 of them do nothing, and make no element that ordinary names do not make."""
    assert len(HOSTILE) == N + M
    scatter = np.random.default_rng(0).random((N, 2))  # quick, and good enough here
    monkeypatch.setattr(report, "coordinates", lambda metric, *_: scatter[: len(metric)])
    seen = []
    for file, names, labels, title in (
        ("plain", [f"name {k}" for k in range(N + M)], [f"kind {k % 20}" for k in range(N)], "t"),
        ("hostile", HOSTILE, [HOSTILE[9 * (k % 20)] for k in range(N)], HOSTILE[0]),
    ):
        path = report.write(
            result,
            tmp_path / f"{file}.html",
            labels=labels,
            sample_names=names[:N],
            feature_names=names[N:],
            title=title,
        )
        visit = Visit(browser, path)
        counts = [visit.tags()]
        visit.page.locator("#features-groups button").first.click()
        counts.append(visit.tags())
        visit.search(names[0])
        assert visit.page.locator("#selection h3 bdi").get_attribute("title") == names[0]
        visit.page.locator("#features-map .scatterlayer path.point").nth(3).hover(force=True)
        visit.page.wait_for_selector("#features-map .hoverlayer text")
        counts.append(visit.tags())
        for name in names[::17]:
            visit.search(name)
        assert visit.page.evaluate("window.ran") is None
        assert visit.faults == []
        assert visit.page.locator("datalist option").count() == N + M
        seen.append(counts)
        visit.page.close()
    assert seen[0] == seen[1]
