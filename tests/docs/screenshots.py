"""Take the pictures of the console: `python -m tests.docs.screenshots --folder .stretto --job longer`.

The folder is that of an installation that runs, in which the job has been trained (the tutorial "Watch and explain").
It needs Chromium and playwright, which `make console-test` installs. Pictures are committed, and small.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from tests.docs.site import OWN

PICTURES = OWN / "pictures"
VIEWS = {"overview": "jobs/{job}/overview", "decisions": "jobs/{job}/decisions", "cluster": "cluster"}
SIZE = {"width": 1100, "height": 720}
BYTES_MAX = 80_000
COLOURS = 128


def main() -> None:
    """The command; SystemExit for a picture that is too large."""
    from PIL import Image
    from playwright.sync_api import sync_playwright  # installed where pictures are taken

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(".stretto"), help="folder of an installation that runs")
    parser.add_argument("--job", required=True, help="job that has been trained there")
    given = parser.parse_args()
    gateway = json.loads((given.folder / "run" / "gateway.json").read_text())
    token = (given.folder / "gateway.token").read_text().strip()
    address = "{scheme}://{host}:{port}/console".format(**gateway)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_context(viewport=SIZE, color_scheme="light").new_page()
        page.goto(f"{address}/#token={token}")
        page.get_by_text("admin (admin)").wait_for()
        for name, view in VIEWS.items():
            page.goto(f"{address}/{view.format(job=given.job)}")
            page.locator("main :is(table, section, article)").first.wait_for()
            page.wait_for_timeout(1000)
            path = PICTURES / f"{name}.png"
            page.screenshot(path=path)
            Image.open(path).convert("RGB").quantize(COLOURS).save(path, optimize=True)
            size = path.stat().st_size
            sys.stdout.write(f"{path.name}: {size:,} bytes\n")
            if size > BYTES_MAX:
                raise SystemExit(f"{path.name} has more than {BYTES_MAX:,} bytes: show less of it")
        browser.close()


if __name__ == "__main__":
    main()
