"""Brings the pages that Zensical makes under the gateway's policy: no script and no style stands in a page.

Inline scripts become files, styles of cells become classes, and the style that the theme's script makes for the search
is adopted instead of written. A first script states how that script may write: HTML as it stands, since scripts in it
do not run, and workers and scripts of our own origin alone.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from pathlib import Path

SCRIPTS = "assets/javascripts"
INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)
CELL = re.compile(r' style="text-align: (left|right|center);"')
STYLED = re.compile(r"<[a-z][^>]* (?:style|on[a-z]+)=\"[^>]*>")
WRITTEN_STYLE = re.compile(r"(\w+)\.appendChild\(\w+\(\"style\",\{\},(\w+)\.toString\(\)\)\)")
ADOPTED_STYLE = r"(s=>{s.replaceSync(\2.toString());\1.adoptedStyleSheets=[s]})(new CSSStyleSheet)"
UNNEEDED = ("404.html", "sitemap.xml", "sitemap.xml.gz", "robots.txt", "objects.inv")
"""Pages that name no address of their own, and the gateway's own answer to a wrong one."""
TRUSTED = """\
if (window.trustedTypes) {
  const own = (url) => {
    if (new URL(url, document.baseURI).origin !== location.origin) throw new TypeError(`not our own: ${url}`);
    return url;
  };
  trustedTypes.createPolicy("default", { createHTML: (html) => html, createScriptURL: own });
}
"""


def apply(site: Path) -> None:
    """Change the pages below ``site``. Raises SystemExit for a style or a handler that stays."""
    for name in UNNEEDED:
        (site / name).unlink(missing_ok=True)
    [bundle] = (site / SCRIPTS).glob("bundle.*.js")
    script, styles = WRITTEN_STYLE.subn(ADOPTED_STYLE, bundle.read_text())
    if styles != 1:
        raise SystemExit(f"{bundle.name}: {styles} styles of the search, expected 1: look at the new Zensical")
    bundle.unlink()
    adopted = _file(site, script)
    for path in sorted(site.rglob("*.html")):
        base = posixpath.relpath(".", path.parent.relative_to(site).as_posix())

        def moved(found: re.Match[str], base: str = base) -> str:
            return f'<script src="{base}/{_file(site, found[1])}"></script>'

        text = CELL.sub(r' class="\1"', path.read_text())
        text = INLINE.sub(moved, text).replace(f"{SCRIPTS}/{bundle.name}", adopted)
        text = text.replace("<script", f'<script src="{base}/{_file(site, TRUSTED)}"></script><script', 1)
        if left := STYLED.search(text):
            raise SystemExit(f"{path.relative_to(site)}: the policy forbids {left[0][:200]}")
        path.write_text(text)


def _file(site: Path, script: str) -> str:
    name = f"{SCRIPTS}/{hashlib.sha256(script.encode()).hexdigest()[:8]}.js"
    (site / name).write_text(script)
    return name
