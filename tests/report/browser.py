"""A real browser without a window, for tests of pages; they are skipped where there is none."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def open_browser(width: int = 1200, height: int = 800) -> Iterator[Any]:
    """A Selenium driver that notes what the page logs and what it asks of the network."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    driver_path = shutil.which("chromedriver")
    if browser is None or driver_path is None:
        pytest.skip("no Chromium with chromedriver here; as root, `make test` installs them")
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="selenium is not installed; `make test` does it"
    )
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    # A container has no user namespaces for the sandbox, and little shared memory.
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        f"--window-size={width},{height}",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_path))
    try:
        yield driver
    finally:
        driver.quit()


def open_anew(driver: Any, path: Path, view: str = "") -> None:
    """Open a page as it is at first, whatever was clicked in it before, and wait until it is drawn."""
    driver.get("about:blank")  # another view of the page that is open would not load it again
    driver.get(path.as_uri() + view)
    await_page(driver)


def await_page(driver: Any) -> None:
    """Wait until the page that is open is drawn."""
    driver.execute_async_script(
        "const done = arguments[0]; (async () => { while (!window.windtunnel) await new Promise(r => setTimeout(r, 20));"
        " await windtunnel.ready(); requestAnimationFrame(() => requestAnimationFrame(done)); })()"
    )


def complaints(driver: Any) -> list[str]:
    """What the page said on the console, and everything it asked for besides itself, since last asked."""
    found = [entry["message"] for entry in driver.get_log("browser")]
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            url = message["params"]["request"]["url"]
            if not url.startswith(("file://", "data:")):
                found.append(f"asked for {url}")
    return found


def pixels(driver: Any) -> np.ndarray:
    """What the reader sees: rows of columns of red, green, blue."""
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed; `make test` does it")
    return np.asarray(image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB"))


def n_colours(shown: np.ndarray) -> int:
    """Few, if nothing is drawn."""
    return len(np.unique(shown.astype(np.int32) @ np.array([65536, 256, 1])))
