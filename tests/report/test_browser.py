"""The page in a real browser: nothing fails, nothing overflows, and a hostile name stays text."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from calibrant import report
from calibrant.metrics.intervals import compare
from tests.report.data import classifier, confidences

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# test_page.py reads the page without a browser.
pytestmark = pytest.mark.slow

HOSTILE = "<script>alert(1)</script>"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("report")
    sure, honest = classifier(samples=300, classes=30, sharpness=2.0), classifier(samples=300, classes=30)
    long = "a-model-with-a-name-that-has-no-space-" + 202 * "x"
    audits = [report.audit(name, one, draws=20) for name, one in ((HOSTILE, sure), (long, honest))]
    written = {name: folder / f"{name}.html" for name in ("one", "several", "pairs")}
    report.write_report(written["one"], audits[:1])
    report.write_report(written["several"], audits, [(HOSTILE, long, compare(sure, honest))])
    report.write_report(written["pairs"], [report.audit(HOSTILE, confidences((0.9, 0.8, 50)), draws=20)])
    return written


@contextmanager
def opened(browser: "Browser", path: Path, width: int, scheme: Literal["light", "dark"]) -> Iterator["Page"]:
    """The open page; it fails if anything went wrong, or anything was loaded."""
    troubles: list[str] = []
    with browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme) as page:
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("requestfailed", lambda request: troubles.append(request.url))
        # A dialog that is not dismissed would stop the page, and the test with it.
        page.on("dialog", lambda dialog: dialog.dismiss())
        page.on("dialog", lambda dialog: troubles.append(dialog.message))
        page.on("request", lambda request: None if request.url.startswith(("file:", "data:")) else
                troubles.append(request.url))  # fmt: skip
        page.goto(path.as_uri())
        yield page
    assert troubles == []


@pytest.mark.parametrize("name", ["one", "several", "pairs"])
@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (360, "dark"), (700, "light")])
def test_the_page_opens_cleanly(
    browser: "Browser", pages: dict[str, Path], name: str, width: int, scheme: Literal["light", "dark"]
) -> None:
    with opened(browser, pages[name], width, scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.get_by_text(HOSTILE).first.is_visible()
        assert page.evaluate("document.scripts.length") == 0
        brightness = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        assert (max(brightness) < 60) if scheme == "dark" else (min(brightness) > 200)
        figures, names = (
            page.evaluate(f"[...document.querySelectorAll('{kind}')].map(n => n.getBoundingClientRect().width)")
            for kind in ("figure svg", "th bdi, td bdi")
        )
        assert figures
        assert all(200 < figure <= width for figure in figures)
        # A long name is broken, and widens no table: at most 14 rem.
        assert all(name <= 14 * 16 for name in names)


# WCAG AA asks for 4.5 to 1.
CONTRAST = """() => {
  const light = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  const texts = [...document.querySelectorAll('p, dt, dd, th, td, h1, h2, h3, caption, small')].map(e =>
    light(getComputedStyle(e).color)).concat([...document.querySelectorAll('svg text')].map(e =>
    light(getComputedStyle(e).fill)));
  return Math.min(...texts.map(t => (Math.max(t, ground) + 0.05) / (Math.min(t, ground) + 0.05)));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_both_schemes(
    browser: "Browser", pages: dict[str, Path], scheme: Literal["light", "dark"]
) -> None:
    with opened(browser, pages["several"], 1000, scheme) as page:
        assert page.evaluate(CONTRAST) > 4.5


def test_print_is_light_and_clips_nothing(browser: "Browser", pages: dict[str, Path]) -> None:
    # The width of A4 without its margins.
    with opened(browser, pages["several"], 687, "dark") as page:
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).getPropertyValue('--paper')").strip() == "#ffffff"
        clipped = "[...document.querySelectorAll('.scroll')].some(e => getComputedStyle(e).overflowX != 'visible')"
        assert not page.evaluate(clipped)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.pdf(format="A4").startswith(b"%PDF")
