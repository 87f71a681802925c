"""Pictures of today's pages for the documentation: screenshots of two runs, by Debian's Chromium.

The runs, and then the pictures, are made by these commands:

    graphmask run star --seed 0 --out out/star
    graphmask run relay --seed 0 --out out/relay
    graphmask analyse out/relay --fits 2
    graphmask report out/star && graphmask report out/relay
    python docs/pictures.py out/star out/relay              # writes docs/img/*.png
"""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).parent / "img"
CHROMIUM = "/usr/bin/chromium"


def pictures(browser: Browser, star: Path, relay: Path, images: Path) -> list[Path]:
    """The page of star, the top of relay's report, and one example of each report."""
    images.mkdir(parents=True, exist_ok=True)
    made = [
        top(browser, star / "star.html", images / "star.png", height=1560),
        top(browser, relay / "report.html", images / "report_top.png", height=1010),
    ]
    for folder, name in ((star, "report_star"), (relay, "report_relay")):
        made.append(first_example(browser, folder / "report.html", images / f"{name}.png"))
    return made


def top(browser: Browser, page: Path, picture: Path, *, height: int) -> Path:
    """What a reader sees first."""
    opened = browser.new_page(viewport={"width": 1280, "height": height}, color_scheme="light")
    opened.goto(page.resolve().as_uri())
    opened.locator(".card svg.graph").first.wait_for(state="attached")
    opened.screenshot(path=picture)
    opened.close()
    return picture


def first_example(browser: Browser, page: Path, picture: Path) -> Path:
    """The first card, which shows something: see `graphmask.report.build`."""
    opened = browser.new_page(viewport={"width": 1280, "height": 1000}, color_scheme="light")
    opened.goto(page.resolve().as_uri())
    card = opened.locator(".card").first
    card.scroll_into_view_if_needed()
    card.locator("svg.unrolled").wait_for(state="attached")
    card.screenshot(path=picture)
    opened.close()
    return picture


def main(star: str = "out/star", relay: str = "out/relay", images: str = str(IMAGES)) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for picture in pictures(browser, Path(star), Path(relay), Path(images)):
            print(picture)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
