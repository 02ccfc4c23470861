"""Build the site into the gateway's package: `python libs/docs/build.py`, or `make docs`.

It needs Zensical and the standard library, and nothing of Stretto: `references.py` has written what comes from the
code.

1. `assemble.py` gathers the pages of `site.toml` and includes what they name.
2. Zensical makes HTML of them; a dead link is an error.
3. `policy.py` brings the HTML under the strict policy of the gateway: no script or style stands in a page.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import assemble
import policy

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / "services" / "gateway" / "stretto_gateway" / "docs"
TITLE = "Stretto"
FEATURES = [
    *("navigation.tabs", "navigation.sections", "navigation.top", "navigation.footer", "navigation.path"),
    *("content.code.copy", "search.highlight", "toc.follow"),
]
EXTENSIONS: dict[str, dict[str, object]] = {
    **{name: {} for name in ("admonition", "attr_list", "def_list", "md_in_html", "tables", "pymdownx.superfences")},
    "toc": {"permalink": True},
    "pymdownx.highlight": {"anchor_linenums": False, "use_pygments": True},
}


def configuration(site: assemble.Site) -> str:
    """Return Zensical's configuration, in the form of YAML that JSON is. Fonts and all else come from the theme."""
    schemes = (("light", "default", "dark", "sun"), ("dark", "slate", "light", "moon"))
    return json.dumps(
        {
            "site_name": TITLE,
            "docs_dir": "docs",
            "site_dir": "site",
            "use_directory_urls": False,
            "nav": site.navigation(),
            "extra": {"generator": False},
            "extra_css": ["stylesheets/extra.css"],
            "theme": {
                "language": "en",
                "font": False,
                "features": FEATURES,
                "palette": [
                    {
                        "media": f"(prefers-color-scheme: {media})",
                        "scheme": scheme,
                        "toggle": {"icon": f"lucide/{icon}", "name": f"Switch to the {other} scheme"},
                    }
                    for media, scheme, other, icon in schemes
                ],
            },
            "markdown_extensions": [{name: options} if options else name for name, options in EXTENSIONS.items()],
        }
    )


def build(target: Path, root: Path = ROOT, *, partial: bool = False) -> int:
    """Build into ``target``; return the number of pages. Raises Lost, and SystemExit with the findings of Zensical."""
    site = assemble.Site(root, partial=partial)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        site.write(work / "docs")
        shutil.copytree(HERE / "theme", work / "docs", dirs_exist_ok=True)
        (work / "mkdocs.yml").write_text(configuration(site))
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "mkdocs.yml"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stdout + done.stderr)
        policy.apply(work / "site")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(work / "site", target)
    return len(site.pages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partial", action="store_true", help="the tree has the pages, and not all that they link to")
    try:
        pages = build(BUILD, partial=parser.parse_args().partial)
    except assemble.Lost as lost:
        raise SystemExit(str(lost)) from None
    size = sum(path.stat().st_size for path in BUILD.rglob("*") if path.is_file())
    sys.stdout.write(f"{BUILD.relative_to(ROOT)}: {pages} pages, {size:,} bytes\n")


if __name__ == "__main__":
    main()
