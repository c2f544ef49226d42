"""Screenshots of every view of the report page, for README and docs, taken by a headless browser.

    runs of the examples ──> their pages ──> Chromium ──> docs/images/report-VIEW-{light,dark}.png

`make screenshots`; while working on a view: `python -m benchmarks.screenshots --reuse memory`.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from selenium.webdriver import ActionChains

from tests.report.browser import complaints, open_browser
from windtunnel.commands.comparison_page import comparison_page, precision_page
from windtunnel.report.page.saved import read_page_document
from windtunnel.report.page.web_page import page_bytes

_ROOT = Path(__file__).parents[1]
_IMAGES = _ROOT / "docs" / "images"
_WORK = _ROOT / "windtunnel-out" / "screenshots"
_WIDTH, _LOWEST = 1280, 360
_COLOURS = 256  # a page has few; a third of the bytes

_READY = """
const done = arguments[arguments.length - 1];
(async () => {
  while (!window.windtunnel) await new Promise((next) => setTimeout(next, 20));
  await windtunnel.ready();
  requestAnimationFrame(() => requestAnimationFrame(() => done(null)));
})().catch((error) => done(error.message));
"""


@dataclass(frozen=True)
class Shot:
    """One view of one page; `act` runs on it first."""

    name: str
    page: str
    view: str = ""
    tallest: int = 1000
    act: Callable[[Any], None] | None = None


# -- what is done to a page first ------------------------------------------------------------------------------


def to_title(selector: str, beginning: str) -> Callable[[Any], None]:
    """Scroll until that title is at the top of the picture."""

    def act(driver: Any) -> None:
        driver.execute_script(
            "document.getElementById('head').style.position = 'static';"
            "const titles = [...document.querySelectorAll(arguments[0])];"
            "titles.find((title) => title.textContent.startsWith(arguments[1])).scrollIntoView();",
            selector,
            beginning,
        )

    return act


def point_at_an_activation(driver: Any) -> None:
    """One allocated by a matrix product, live at the peak."""
    chart = driver.find_element("css selector", ".memory-chart .u-over")
    for down in range(-20, 100):
        right = round(0.24 * chart.size["width"])
        ActionChains(driver, duration=0).move_to_element_with_offset(chart, right, down).perform()
        if "aten.mm" in driver.find_element("id", "tip").text:
            return


# Do not show this machine's folders.
_SHORTEN = """
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode;
  for (const [long, short] of arguments[0]) if (node.data.includes(long)) node.data = node.data.replaceAll(long, short);
}
"""


# -- the pages -------------------------------------------------------------------------------------------------


def world(recompute: bool = False) -> Path:
    """Qwen2.5-7B on 16 devices of 40 GB: tensor 2 x pipeline 4 x data 2."""
    folder = _WORK / ("world-recompute" if recompute else "world")
    launch = f"{sys.executable} -m windtunnel.commands.main run --level 3 --device a100-40gb --world-size 16"
    sizes = {"TP": "2", "PP": "4", "SEQ": "8192", "GLOBAL_BATCH": "16", "RECOMPUTE": str(int(recompute))}
    script = ["sh", "examples/megatron/qwen25_7b.sh"]
    return _made(folder, script, {"LAUNCH": f"{launch} --force --out {folder}", **sizes})


def remat() -> Path:
    folder = _WORK / "remat"
    command = [*_windtunnel("remat"), "--device", "2080ti-11gb", "--force", "--out", str(folder)]
    return _made(folder, [*command, "examples/resnet50.py", "--batch", "200"])


def comparison() -> Path:
    return _written(_WORK / "comparison.html", comparison_page(world().parent, world(True).parent)[0])


def precision() -> Path:
    dumps = [_WORK / "dump_good", _WORK / "dump_bad"]
    for dump, mistake in zip(dumps, ([], ["--mistake"]), strict=True):
        if not dump.exists():
            script = str(_ROOT / "examples" / "precision.py")
            subprocess.run([sys.executable, script, "--dump", str(dump), *mistake], check=True)
    return _written(_WORK / "precision.html", precision_page(*dumps)[0])


def _windtunnel(*words: str) -> list[str]:
    return [sys.executable, "-m", "windtunnel.commands.main", *words]


def _made(folder: Path, command: list[str], more: dict[str, str] | None = None) -> Path:
    page = folder / "report.html"
    if not page.exists():
        print(f"$ {' '.join(command)}", flush=True)
        env = os.environ | {"PYTHONWARNINGS": "ignore"} | (more or {})
        done = subprocess.run(command, cwd=_ROOT, env=env, stdout=subprocess.DEVNULL)
        if done.returncode not in (0, 4):  # 4: does not fit, which is what the picture should show
            sys.exit(f"that ended with exit code {done.returncode}")
    document = read_page_document(page)
    return _written(page, page_bytes(document["kind"], document))  # with the scripts as they are now


def _written(path: Path, page: bytes) -> Path:
    path.write_bytes(page)
    return path


PAGES: dict[str, Callable[[], Path]] = {
    "world": world,
    "remat": remat,
    "comparison": comparison,
    "precision": precision,
}
SHOTS = (
    Shot("overview", "world", "overview", tallest=1250),
    Shot("memory", "world", "memory", act=point_at_an_activation),
    Shot("peak", "world", "peak"),
    Shot("allocator", "world", "allocator"),
    Shot("time", "world", "time", tallest=700),
    Shot("timeline", "world", "time", act=to_title("#view-time h2", "One step")),
    Shot("warnings", "world", "warnings"),
    Shot("remat", "remat", "remat"),
    Shot("comparison", "comparison"),
    Shot("precision", "precision"),
)


# -- the pictures ----------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.screenshots", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these pictures")
    parser.add_argument("--reuse", action="store_true", help="reuse the runs of the last time")
    args = parser.parse_args(argv)
    if not args.reuse:
        shutil.rmtree(_WORK, ignore_errors=True)
    _WORK.mkdir(parents=True, exist_ok=True)
    shots = [shot for shot in SHOTS if not args.names or shot.name in args.names]
    pages = {name: PAGES[name]() for name in dict.fromkeys(shot.page for shot in shots)}
    with open_browser(_WIDTH, _LOWEST) as driver:
        driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        for shot in shots:
            for theme in ("light", "dark"):
                path = _IMAGES / f"report-{shot.name}-{theme}.png"
                n_bytes = _take(driver, pages[shot.page], shot, theme, path)
                print(f"{path.relative_to(_ROOT)}  {n_bytes / 1000:.0f} kB")
        found = complaints(driver)
    if found:
        sys.exit("the pages complained: " + "; ".join(found))


def _take(driver: Any, page: Path, shot: Shot, theme: str, path: Path) -> int:
    driver.get("about:blank")  # the same address with another view would not load the page anew
    _fit_window(driver, shot.tallest)
    driver.get(f"{page.as_uri()}#{shot.view}")
    driver.execute_script(
        "document.documentElement.dataset.theme = arguments[0]; dispatchEvent(new Event('resize'));", theme
    )
    driver.execute_async_script(_READY)
    content = driver.execute_script("return Math.ceil(document.body.getBoundingClientRect().height)")
    _fit_window(driver, max(_LOWEST, min(content, shot.tallest)))
    driver.execute_async_script(_READY)
    if shot.act is not None:
        shot.act(driver)
        driver.execute_async_script(_READY)
    packages = Path(sysconfig.get_path("purelib"))
    driver.execute_script(_SHORTEN, [[f"{_ROOT}/", ""], [f"{packages}/", ""]])
    image = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    image.quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
    return path.stat().st_size


def _fit_window(driver: Any, height: int) -> None:
    """The part that shows the page is `height` high: a window has borders of its own."""
    driver.set_window_size(_WIDTH, height)
    lost = driver.execute_script("return [outerWidth - innerWidth, outerHeight - innerHeight]")
    if any(lost):
        driver.set_window_size(_WIDTH + lost[0], height + lost[1])


if __name__ == "__main__":
    main()
