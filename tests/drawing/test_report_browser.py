"""The report in a real browser: it draws, its maps are linked, and names are only names."""

import csv
import io
import shutil
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import cometric as cm

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
    frame = pd.DataFrame(X, [f"cell {i}" for i in range(N)], [f"gene {k}" for k in range(M)])
    return cm.learn(frame, eps=np.inf, tau=0.1)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=BROWSER, args=FLAGS.split())
        yield launched
        launched.close()


WAIT = 60_000
"""Milliseconds: a busy machine is slow."""


class Visit:
    """A page, and everything it should not have done."""

    def __init__(self, browser, path, width=1400, height=900, **options):
        viewport = {"width": width, "height": height}
        self.page = browser.new_page(viewport=viewport, accept_downloads=True, **options)
        self.page.set_default_timeout(WAIT)
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
        if url != own and not url.startswith("blob:"):
            self.faults.append(f"request {url}")

    def ask(self, code):
        """The value of an expression over what the page shows to tests."""
        return self.page.evaluate(
            f"(({{maps, data, coloring, selected}}) => {code})(cometricReport)"
        )

    def places(self, side):
        """Where the points of a map are on the screen."""
        box = self.page.locator(f"#{side}-map .over").bounding_box()
        x, y = (np.array(self.ask(f"Array.from(maps.{side}.{axis})")) for axis in ("px", "py"))
        return np.column_stack([box["x"] + x, box["y"] + y])

    def colors(self, side):
        """The color of each point."""
        return self.ask(f"maps.{side}.look.style.map((k) => maps.{side}.look.styles[k].color)")

    def listed(self, side):
        """The names in the first table of one side."""
        return self.page.locator(f"#selection table.{side}").first.locator("th").all_inner_texts()

    def title(self):
        return self.page.locator("#selection h3").inner_text()

    def press(self, side, label):
        self.page.locator(f"#{side}-groups button", has_text=label).click()

    def search(self, text):
        self.page.locator("#search").fill(text)
        self.page.locator("#search").press("Enter")

    def tags(self):
        tags = "[...document.querySelectorAll('body, body *')].map((e) => e.tagName)"
        return Counter(self.page.evaluate(tags))


@pytest.fixture(scope="module")
def file(result, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "r.html"
    stages = pd.Categorical(LABELS, ["early", "middle", "late"])
    labels = {"stage": stages, "number": np.arange(N) / 2, "batch": np.arange(N) % 2}
    return report.write(result, path, labels=labels, certificate=result.certify())


@pytest.fixture(scope="module")
def opened(browser, file):
    return Visit(browser, file)


@pytest.fixture
def visit(opened):
    yield opened
    opened.page.keyboard.press("Escape")
    opened.page.locator("button[data-tool=lasso]").click()
    opened.page.locator("#samples-color").select_option("0")
    assert opened.faults == []


def test_both_maps_and_the_convergence_are_drawn(visit, result):
    for side, count in (("samples", N), ("features", M)):
        assert visit.ask(f"maps.{side}.side.n") == count
        inked = visit.page.evaluate(
            f"""() => {{ const canvas = document.querySelector("#{side}-map .points");
            const [w, h] = [canvas.width, canvas.height];
            const {{ data }} = canvas.getContext("2d").getImageData(0, 0, w, h);
            return data.filter((value, k) => k % 4 === 3 && value > 100).length; }}"""
        )
        assert inked > 10 * count  # pixels
        assert len(set(visit.colors(side))) >= 3
    names = visit.ask("maps.samples.groupNames")
    assert [name["text"] for name in names] == ["early", "middle", "late"]  # none is left out
    drawn = visit.page.locator("#convergence circle").count()
    assert drawn == sum(np.isfinite(line.residual) for line in result.history)


def test_a_group_of_samples_lights_up_the_features_that_carry_it(visit, result):
    visit.press("samples", "late")
    A = result.problem.samples.full.toarray()
    inside, outside = A[LABELS == "late"].mean(axis=0), A[LABELS != "late"].mean(axis=0)
    floor = report.SHRINK / M
    ratio = np.log2((inside + floor) / (outside + floor))
    assert np.allclose(visit.ask("Array.from(selected().ratio)"), ratio, atol=0.03)
    told = [int(name.split()[1]) for name in visit.listed("features")]
    assert {k % 3 for k in told} == {1}  # "late" is the second label in the alphabet
    assert ratio[told].min() >= np.sort(ratio)[-len(told) - 1] - 0.06
    faint = visit.ask("Array.from(maps.samples.look.faint)")
    assert np.array_equal(np.array(faint) == 1, LABELS != "late")
    button = visit.page.locator("#samples-groups button", has_text="late")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()  # once more clears
    assert visit.page.locator("#selection").inner_text() == ""


def test_a_group_of_features_lights_up_the_samples_that_carry_it(visit, result):
    visit.page.locator("#features-groups button").first.click()
    chosen = np.isin(np.arange(M), visit.ask("selected().chosen"))
    B = result.problem.features.full.toarray()
    floor = report.SHRINK / N
    ratio = np.log2((B[chosen].mean(axis=0) + floor) / (B[~chosen].mean(axis=0) + floor))
    assert np.allclose(visit.ask("Array.from(selected().ratio)"), ratio, atol=0.03)
    (kind,) = {k % 3 for k in np.flatnonzero(chosen)}
    kinds = {LABELS[int(name.split()[1])] for name in visit.listed("samples")}
    assert kinds == {np.unique(LABELS)[kind]}


@pytest.mark.parametrize("tool", ["lasso", "box"])
def test_points_drawn_around_are_selected_and_downloaded(visit, tool):
    visit.page.locator(f"button[data-tool={tool}]").click()
    visit.page.locator("#samples-map").scroll_into_view_if_needed()
    dots = visit.places("samples")
    box = visit.page.locator("#samples-map .over").bounding_box()
    left, top = box["x"] + 2, box["y"] + 2
    middle, bottom = float(np.median(dots[:, 0])), box["y"] + box["height"] - 2
    corners = [(middle, top), (middle, bottom), (left, bottom), (left, top + 1)]
    visit.page.mouse.move(left, top)
    visit.page.mouse.down()
    for x, y in corners if tool == "lasso" else [(middle, bottom)]:
        visit.page.mouse.move(x, y, steps=4)
    visit.page.mouse.up()
    visit.page.wait_for_selector("#selection table")
    chosen = np.isin(np.arange(N), visit.ask("selected().chosen"))
    clear = np.abs(dots[:, 0] - middle) > 1
    assert np.array_equal(chosen[clear], (dots[:, 0] < middle)[clear])
    with visit.page.expect_download() as waiting:
        visit.page.locator("#csv").click()
    assert waiting.value.suggested_filename == "samples.csv"
    text = Path(waiting.value.path()).read_text("utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["sample"] for row in rows] == [f"cell {k}" for k in np.flatnonzero(chosen)]
    assert [row["stage"] for row in rows] == LABELS[chosen].tolist()


def test_a_point_can_be_pressed_and_is_named_when_hovered(visit):
    x, y = visit.places("features")[7]
    visit.page.mouse.move(x, y)
    visit.page.wait_for_selector("#features-map .tip:not([hidden])")
    hovered = visit.page.locator("#features-map .tip b").inner_text()
    visit.page.mouse.down()
    visit.page.mouse.up()
    visit.page.wait_for_selector("#selection table")
    assert visit.title() == f"1 feature: {hovered}"
    assert hovered.startswith("gene ")


def test_nearest_items_of_both_kinds_are_on_screen_side_by_side(visit, result):
    visit.search("GENE 17")
    assert visit.title() == "1 feature: gene 17"
    order = np.argsort(result.features[17], kind="stable")[1:11]
    assert visit.listed("features") == [f"gene {k}" for k in order]
    assert visit.page.evaluate("window.scrollY") == 0
    tables = [visit.page.locator(f"#selection table.{s}").first for s in ("samples", "features")]
    one, other = (table.bounding_box() for table in tables)
    for box in (one, other):
        assert box["height"] > 100
        assert box["y"] + box["height"] < 900
        assert box["x"] + box["width"] < 1400
    assert one["y"] == other["y"]
    assert one["x"] + one["width"] <= other["x"]
    visit.page.locator("#selection table.features button").first.click()  # go on from there
    assert visit.title() == f"1 feature: gene {order[0]}"


def test_search_reports_an_unknown_name(visit):
    visit.search("cell 3")
    assert visit.title() == "1 sample: cell 3"
    visit.search("no such thing")
    answer = visit.page.locator("#answer")
    assert answer.inner_text() == (
        '"no such thing" is not among the 120 samples, the 80 features and the groups of this page.'
    )
    assert not visit.page.locator("#csv").is_enabled()
    visit.search("gene 999")
    assert "and the groups of this page. Similar: gene 9" in answer.inner_text()
    visit.search("gene 9")
    assert answer.inner_text() == ""
    visit.search("MIDDLE")  # a group
    assert visit.title() == "40 samples: middle"
    if "modules" in visit.ask("data.features.columns.map((column) => column.name)"):
        visit.search("module 1")
        assert visit.ask("selected().title").startswith("1: gene ")
    visit.search("nothing")
    assert answer.inner_text() != ""
    visit.search("")
    assert answer.inner_text() == ""


def test_samples_are_colored_by_labels_numbers_and_features(visit, result):
    chooser = visit.page.locator("#samples-color")
    names = chooser.locator("option").all_inner_texts()
    assert names[:3] == ["stage", "number", "batch"]
    chooser.select_option("2")
    assert visit.page.locator("#samples-groups button").count() == 2
    assert visit.colors("samples")[::2] == [visit.colors("samples")[0]] * (N // 2)
    chooser.select_option("1")
    assert len(set(visit.colors("samples"))) > 20
    assert visit.page.locator("#samples-scale").is_visible()
    field = visit.page.locator("#by-feature")
    field.fill("gene 5")
    field.press("Enter")
    A = 100 * result.problem.samples.full.toarray()[:, 5]
    assert np.allclose(visit.ask("Array.from(coloring.samples.values)"), A, rtol=0.03)
    assert visit.page.locator("#samples-scale .what").inner_text() == "gene 5, % of each sample"
    listed = "select => select.selectedOptions[0].textContent"
    assert chooser.evaluate(listed) == "feature gene 5"
    field.fill("gene X")
    field.press("Enter")
    answer = visit.page.locator("#answer")
    assert '"gene X" is not among the 80 features' in answer.inner_text()
    assert field.input_value() == "gene 5"  # which the map still shows
    visit.search("gene 7")  # the map now shows the selection, and the list and field say so
    assert chooser.evaluate(listed) == "goes with the selection"
    assert field.input_value() == ""
    assert answer.inner_text() == ""
    field.fill("gene X")
    field.press("Enter")
    chooser.select_option("0")  # clears the selection, and the answer
    assert visit.ask("selected().side") is None
    assert answer.inner_text() == ""
    assert chooser.evaluate(listed) == "stage"
    assert len(set(visit.colors("samples"))) == 3


def test_the_keyboard_is_enough(visit):
    visit.page.keyboard.press("/")
    assert visit.page.evaluate("document.activeElement.id") == "search"
    visit.page.locator("#samples-groups button").first.focus()
    visit.page.keyboard.press("Enter")
    assert visit.title() == "60 samples: early"
    visit.page.keyboard.press("Escape")
    assert visit.page.locator("#selection").inner_text() == ""
    visit.page.locator("#features-map .over").focus()
    visit.page.keyboard.press("ArrowRight")
    begun = visit.ask("maps.features.cursor")
    visit.page.keyboard.press("ArrowLeft")
    at = visit.ask("maps.features.cursor")
    dots = visit.places("features")
    assert at != begun
    assert dots[at, 0] < dots[begun, 0]
    visit.page.keyboard.press("Enter")
    assert visit.title() == f"1 feature: gene {at}"
    visit.page.keyboard.press("+")
    assert visit.ask("maps.features.zoom") == pytest.approx(1.4)
    visit.page.keyboard.press("0")
    assert visit.ask("maps.features.zoom") == 1


def test_dark_follows_the_system_and_the_switch(browser, file):
    visit = Visit(browser, file, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark, points = visit.page.evaluate(ground), visit.colors("samples")
    visit.page.locator("#theme").click()
    light = visit.page.evaluate(ground)
    assert sum(map(int, dark[4:-1].split(","))) < 150 < 600 < sum(map(int, light[4:-1].split(",")))
    assert visit.colors("samples") != points
    visit.page.locator("#theme").click()
    assert visit.page.evaluate(ground) == dark
    visit.page.emulate_media(media="print")  # light on paper, without controls
    visit.page.wait_for_selector("body[data-shown=light]")
    assert visit.ask("maps.samples.look.ink") == "#1b1f24"
    assert not visit.page.locator(".controls").is_visible()
    assert visit.page.locator("#samples-map").is_visible()
    visit.page.emulate_media(media="screen")
    visit.page.wait_for_selector("body[data-shown=dark]")
    assert visit.colors("samples") == points
    assert visit.faults == []
    visit.page.close()


def test_a_phone_shows_all_of_it(browser, file):
    visit = Visit(browser, file, width=390, height=844, has_touch=True, is_mobile=True)
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 390
    first, second = (
        visit.page.locator(f"#{side}-map").bounding_box() for side in ("samples", "features")
    )
    assert second["y"] > first["y"] + first["height"]  # one below the other
    visit.search("gene 17")  # is answered where it is asked, not far below
    line = visit.page.locator("#found")
    assert line.inner_text().startswith("1 feature: gene 17. Nearest: gene ")
    asked, box = visit.page.locator("#search").bounding_box(), line.bounding_box()
    assert 0 < box["y"] - asked["y"] < 250
    line.locator("button").click()
    visit.page.wait_for_function("document.querySelector('#panel').getBoundingClientRect().top < 9")
    visit.page.locator("#features-map").scroll_into_view_if_needed()
    x, y = visit.places("features")[3]
    visit.page.touchscreen.tap(x, y)
    visit.page.wait_for_selector("#selection table")
    assert visit.title().startswith("1 feature: gene ")
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 390
    assert visit.faults == []
    visit.page.close()


def test_a_tree_is_drawn_and_its_branches_can_be_selected(browser, tmp_path):
    learned = cm.learn(cm.datasets.torus("unimodal", 12, 10), transport=cm.Tree(), tau=0)
    visit = Visit(browser, report.write(learned, tmp_path / "r.html", modules=False))
    visit.page.locator("#samples .view").click()
    ranks = visit.ask("Array.from(data.samples.tree.ranks)")
    assert np.argsort(visit.places("samples")[:, 1]).tolist() == np.argsort(ranks).tolist()
    tree = learned.tree("samples")
    nodes = np.array(visit.ask("maps.samples.nodes"))
    box = visit.page.locator("#samples-map .over").bounding_box()
    pressed = 0
    for node in (20, 21):
        away = np.linalg.norm(nodes - nodes[node], axis=1)
        if np.sort(away)[1] < 14:  # another node or leaf is as near
            continue
        visit.page.mouse.click(box["x"] + nodes[node, 0], box["y"] + nodes[node, 1])
        members = [leaf for leaf in range(12) if leaf in _leaves(tree.parents, node)]
        assert sorted(visit.ask("selected().chosen")) == members
        pressed += 1
    assert pressed
    assert visit.faults == []
    visit.page.close()


def _leaves(parents, node):
    """The leaves and nodes below a node, by definition."""
    found = {node}
    for k in range(len(parents) - 1, -1, -1):
        if parents[k] in found:
            found.add(k)
    return found


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
        options = {"labels": {title: labels}, "title": title}
        options |= {"sample_names": names[:N], "feature_names": names[N:]}
        path = report.write(result, tmp_path / f"{file}.html", **options)
        visit = Visit(browser, path)
        counts = [visit.tags()]
        unfold, legend = (visit.page.locator(f"#samples-{part}") for part in ("all", "groups"))
        assert unfold.inner_text() == "Show all 20"  # more than fit
        folded = legend.bounding_box()["height"]
        unfold.click()
        assert legend.bounding_box()["height"] > folded
        assert unfold.inner_text() == "Show fewer"
        visit.page.locator("#features-groups button").first.click()
        counts.append(visit.tags())
        visit.search(names[0])
        assert visit.page.locator("#selection h3 bdi").get_attribute("title") == names[0]
        visit.page.mouse.move(*visit.places("features")[3])
        visit.page.wait_for_selector("#features-map .tip:not([hidden])")
        for name in names[::17]:
            visit.search(name)
        assert visit.page.evaluate("window.ran") is None
        assert visit.faults == []
        seen.append(counts)
        visit.page.close()
    assert seen[0] == seen[1]


def test_a_spreadsheet_runs_nothing_of_the_csv(browser, result, tmp_path, monkeypatch):
    scatter = np.random.default_rng(0).random((N, 2))
    monkeypatch.setattr(report, "coordinates", lambda metric, *_: scatter[: len(metric)])
    odd = ["=1+1", "+x", "-2.5", "@a", 'a "b", c', "two\nlines"]
    names = odd + [f"gene {k}" for k in range(M - len(odd))]
    path = report.write(result, tmp_path / "r.html", feature_names=names, modules=False)
    visit = Visit(browser, path)
    visit.page.evaluate("cometricReport.select('features', [0, 1, 2, 3, 4, 5], 'odd')")
    with visit.page.expect_download() as waiting:
        visit.page.locator("#csv").click()
    with open(waiting.value.path(), encoding="utf-8-sig", newline="") as text:
        read = [row["feature"] for row in csv.DictReader(text)]
    assert read == ["'=1+1", "'+x", "-2.5", "'@a", 'a "b", c', "two\nlines"]
    assert visit.faults == []
    visit.page.close()


def test_without_scripts_there_are_no_empty_maps(browser, result, tmp_path):
    path = report.write(result, tmp_path / "r.html", labels=LABELS)
    page = browser.new_page(java_script_enabled=False)
    page.goto(path.as_uri())
    seen = {name: page.locator(name).is_visible() for name in (".explorer", ".summary", "noscript")}
    assert seen == {".explorer": False, ".summary": True, "noscript": True}
    page.close()
