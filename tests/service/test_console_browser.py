"""The console in a real browser: Debian's Chromium, driven by Playwright, against a service that runs."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Service, Start
from melon.service.keys import keys_of

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("there is no chromium; on Debian: apt-get install chromium", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright drives the browser")

ROOT = Path(__file__).parents[2]
AXE = Path(os.environ.get("MELON_AXE", ROOT / "node_modules" / "axe-core" / "axe.min.js"))
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDTHS = (390, 1280, 1920)


class Browser:
    """A browser with a folder of its own; what its pages complain about is collected."""

    def __init__(self, context: Any) -> None:
        self.context, self.said, self.asked = context, list[str](), list[str]()

    def open(self, url: str, width: int = 1280, scheme: str = "light") -> Any:
        page = self.context.new_page()
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.on("console", lambda message: self.said.append(message.text) if _is_wrong(message) else None)
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(url)
        return page


def _is_wrong(message: Any) -> bool:
    # Facts of an item are asked for, and most items have none.
    return message.type == "error" and "status of 404" not in message.text


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        folder = tmp_path_factory.mktemp("chromium")
        context = driver.chromium.launch_persistent_context(folder, executable_path=CHROMIUM, args=FLAGS)
        context.set_default_timeout(30_000)
        yield context
        context.close()


@pytest.fixture
def browser(chromium: Any) -> Iterator[Browser]:
    browser = Browser(chromium)
    yield browser
    for page in chromium.pages[1:]:
        page.close()


@pytest.fixture(scope="module")
def busy(start: Start) -> Service:
    """A service with a thousand events behind it, some of them recommended, and a few lists."""
    service = start()
    for first in range(0, 1_000, 100):
        service.post(
            [
                {"user": f"u{n * 7 % 30}", "item": f"i{(n * 13 + n // 500) % 150 if n % 3 else n // 500}"}
                for n in range(first, first + 100)
            ]
        )
    for user in range(20):
        service.get(f"/v1/recommendations/u{user}")
    service.wait(lambda: service.get("/v1/status")["lag"] == 0)
    return service


def text_of(page: Any, selector: str) -> str:
    return " ".join(page.locator(selector).first.inner_text().split())


def test_the_page_says_what_the_api_says(busy: Service, browser: Browser) -> None:
    page = browser.open(busy.url)
    page.wait_for_selector("text=Is it better than doing nothing?")
    page.wait_for_selector(".pill:has-text('Learning')")
    # What was asked may have grown older than the page: events have stopped, so the numbers stand still.
    quality, status = busy.get("/v1/quality"), busy.get("/v1/status")
    row = text_of(page, ".quality table:has-text('Ranked among 99') tbody tr:has-text('served model')")
    assert f"{quality['models']['served']['HR@10']:.3f}" in row
    assert f"{quality['models']['served']['ranked']:,}" in row
    popular = text_of(page, ".quality table:has-text('Ranked among 99') tbody tr:has-text('recent popularity')")
    assert f"{abs(quality['models']['popular']['served_ahead']['HR@10']):.3f}" in popular
    whole = text_of(page, ".quality table:has-text('Whole lists') tbody tr:has-text('served model')")
    assert f"{quality['lists']['all']['served']['HR@10']:.3f}" in whole
    assert "own history" in text_of(page, ".quality table:has-text('Whole lists')")
    assert f"{status['log']['events']:,}" in text_of(page, ".tile:has-text('events in the log') dd")
    assert str(status["users"]) in text_of(page, ".tile:has-text('users') dd")
    assert page.locator(".chart canvas").count() >= 4
    assert "the learner started" in text_of(page, ".marks")
    assert not browser.said
    assert all(url.startswith((busy.url, "data:")) for url in browser.asked)


def test_every_control_works(busy: Service, browser: Browser) -> None:
    page = browser.open(busy.url)
    page.wait_for_selector(".chart canvas")
    page.get_by_label("organic").check(force=True)
    organic = busy.get("/v1/quality")["models"]["served"]["parts"]["organic"]["ranked"]
    page.wait_for_function(
        "text => [...document.querySelectorAll('.quality tbody tr')].some((row) => row.innerText.includes(text))",
        arg=f"{organic:,}",
    )
    page.get_by_label("NDCG@10").check(force=True)
    page.wait_for_selector("figcaption:has-text('NDCG@10')")
    page.get_by_role("radio", name="whole lists").check(force=True)
    page.wait_for_selector("figcaption:has-text('NDCG@10 of whole lists') .legend:has-text('own history')")
    for label in ("1 h", "7 d", "15 min"):
        page.get_by_label(label, exact=True).check(force=True)
    page.get_by_label("dark").check(force=True)
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    page.locator("summary").first.click()
    page.wait_for_selector("details[open] tbody tr")
    page.locator("a[href^='#item=']").first.click()
    page.wait_for_selector("h3:has-text('Similar to')")
    assert not browser.said


def test_why_this_is_answered_by_keyboard_alone(busy: Service, browser: Browser) -> None:
    page = browser.open(f"{busy.url}/#key={busy.app.state.token}")
    page.wait_for_selector("#why-user")
    assert "mk_" not in page.evaluate("location.href")
    before = busy.get("/v1/status")["served"]["lists"]
    page.focus("#why-user")
    page.keyboard.type("u3")
    page.keyboard.press("Enter")
    page.wait_for_selector("h3:has-text('List for u3')")
    listed = busy.get("/v1/recommendations/u3?preview=true")["items"]
    shown = page.locator(".thirds table").first.locator("tbody th").all_inner_texts()
    assert shown == [str(one["item"]) for one in listed]
    newest = busy.get("/v1/users/u3/history?limit=1")["events"][0]["item"]
    assert newest in text_of(page, ".thirds > div:has(h3:has-text('Last events'))")
    page.keyboard.press("Tab")
    page.keyboard.type(str(listed[0]["item"]))
    page.keyboard.press("Enter")
    page.wait_for_selector("h3:has-text('Why')")
    reason = busy.get(f"/v1/explain/u3/{listed[0]['item']}")
    assert f"Place {reason['rank']} of {reason['items']}" in text_of(page, ".thirds > div:has(h3:has-text('Why'))")
    assert busy.get("/v1/status")["served"]["lists"] == before
    assert not browser.said


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits(busy: Service, browser: Browser, width: int, scheme: str) -> None:
    page = browser.open(busy.url, width, scheme)
    page.wait_for_selector(".chart canvas")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if not AXE.exists():
        pytest.skip(f"no axe-core in {AXE}: npm install --no-save axe-core")
    page.wait_for_selector(".heat canvas, .learning .note")
    serious(page)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_reference_has_every_route(busy: Service, browser: Browser, width: int) -> None:
    page = browser.open(f"{busy.url}/docs", width)
    page.wait_for_selector("section.card code")
    paths = busy.get("/openapi.json")["paths"]
    shown = " ".join(page.locator("section.card h2").all_inner_texts())
    assert all(path in shown for path in paths)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if AXE.exists():
        serious(page)
    assert not browser.said
    assert all(url.startswith(busy.url) for url in browser.asked)


def serious(page: Any) -> None:
    """No serious or critical finding of axe-core. It is run by the driver, which the page's policy does not bind."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    told = [(one["id"], [node["html"][:200] for node in one["nodes"]][:3]) for one in found if one["impact"] in SERIOUS]
    assert not told


SERIOUS = ("serious", "critical")


def test_an_empty_service_tells_a_newcomer_what_to_post(start: Start, browser: Browser) -> None:
    service = start()
    page = browser.open(service.url)
    page.wait_for_selector("text=Nothing has been posted yet")
    command = page.locator(".begin pre").first.inner_text()
    assert f"{service.url}/v1/interactions" in command
    posted = subprocess.run(["bash", "-c", command], check=True, capture_output=True)
    assert posted.stdout.startswith(b'{"accepted":3')
    page.wait_for_selector(".begin", state="detached")
    page.wait_for_selector(".pill:has-text('Learning')")


def test_keys_are_asked_for_and_stay_in_memory(start: Start, browser: Browser) -> None:
    service = start()
    keys = keys_of(service.settings)
    reader, _ = keys.add(["read"])
    admin, _ = keys.add(["read", "admin"])
    service.wait(lambda: service.call("GET", "/v1/status").status == 401)
    service.key = reader
    page = browser.open(service.url)
    page.wait_for_selector("h2:has-text('Sign in')")
    page.fill("input[type=password]", "mk_wrong")
    page.click("button:has-text('Sign in')")
    page.wait_for_selector("[role=alert]")
    page.fill("input[type=password]", reader)
    page.click("button:has-text('Sign in')")
    page.wait_for_selector("#why-user")
    page.fill("#why-user", "u3")
    page.click("button:has-text('Look')")
    page.wait_for_selector("text=A key with the scope admin is needed")
    page.click("button:has-text('Sign out')")
    page.wait_for_selector("h2:has-text('Sign in')")
    page.fill("input[type=password]", admin)
    page.click("button:has-text('Sign in')")
    page.wait_for_selector("#why-user")
    kept = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
    assert "mk_" not in page.evaluate(kept)
    page.reload()
    page.wait_for_selector("h2:has-text('Sign in')")


@pytest.mark.slow
def test_a_service_that_stops_is_said_to(browser: Browser, shop: Path, tmp_path: Path) -> None:
    """The page of real processes: the learner is killed and comes back, then everything stops."""
    command = [Path(sys.executable).with_name("melon"), "serve", shop, "--data", tmp_path, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        url = next(word for line in process.stdout for word in line.split() if word.startswith("http")).rstrip(".,;")
        page = browser.open(url)
        page.wait_for_selector(".pill:has-text('Waiting'), .pill:has-text('Learning')", timeout=120_000)
        lock = tmp_path / "learner.lock"
        first = lock.read_text().split()[0]
        # It comes back within seconds, so that it is killed again until the page has looked while it was away.
        down, end = page.locator(".pill:has-text('The learner does not run')"), time.monotonic() + 120
        while not down.count() and time.monotonic() < end:
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(int(lock.read_text().split()[0]), signal.SIGKILL)
            page.wait_for_timeout(200)
        assert "supervisor restarts it" in text_of(page, ".alarms")
        page.locator(".marks li:has-text('the learner started')").nth(1).wait_for(timeout=120_000)
        assert lock.read_text().split()[0] != first
        process.send_signal(signal.SIGTERM)
        page.wait_for_selector(".pill:has-text('The service does not answer')", timeout=60_000)
        page.wait_for_selector(".stale")
    finally:
        process.terminate()
        end = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        process.kill()
