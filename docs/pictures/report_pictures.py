"""Take the pictures of the report of a quickstart (needs playwright and Chromium).

python docs/pictures/report_pictures.py RUN

Each carries a hash of the report's templates; a test fails when these have changed since.
"""

import argparse
import hashlib
import re
import shutil
import struct
import zlib
from importlib.resources import files
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMES = ("report_first.png", "report_curves.png", "report_debate.png")
_AFTER_HEADER = 33
# A busy machine may take minutes to open the page.
LONGEST_MS = 300_000


def templates() -> str:
    """Return a hash of what draws a report."""
    found = sorted((files("debate_report") / "templates").iterdir(), key=lambda file: file.name)
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in found)).hexdigest()


def stamped(png: bytes) -> bytes:
    """Return a PNG that says by which templates its report was drawn."""
    body = b"tEXtTemplates\0" + templates().encode()
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return png[:_AFTER_HEADER] + chunk + png[_AFTER_HEADER:]


def stamp(png: bytes) -> str:
    """Return the hash that `stamped` wrote; empty where there is none."""
    found = re.search(rb"tEXtTemplates\0([0-9a-f]{64})", png)
    return found[1].decode() if found else ""


def main() -> None:
    """Write the report, open it in Chromium and take its pictures."""
    from playwright.sync_api import sync_playwright

    from debate_report import write_report

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a directory that make quickstart wrote")
    page_file = write_report(parser.parse_args().run)
    with sync_playwright() as driver:
        chromium = shutil.which("chromium") or driver.chromium.executable_path
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1180, "height": 1150})
        page.set_default_timeout(LONGEST_MS)
        page.goto(page_file.resolve().as_uri())
        (HERE / NAMES[0]).write_bytes(stamped(page.screenshot()))
        page.set_viewport_size({"width": 1000, "height": 690})
        page.evaluate("document.querySelector('#curves').scrollIntoView()")
        (HERE / NAMES[1]).write_bytes(stamped(page.screenshot()))
        page.click("#overturned a")
        page.wait_for_timeout(1000)  # until this debate is open
        page.evaluate("document.querySelector('#browser .columns').scrollIntoView()")
        (HERE / NAMES[2]).write_bytes(stamped(page.screenshot()))
        browser.close()


if __name__ == "__main__":
    main()
