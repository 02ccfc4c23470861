"""The pages of the site, put together from Markdown that stands once in the repository.

`site.toml` names the pages in their order. A page is a file of `pages/`, or a Markdown file elsewhere. On a line of its
own, a page includes what stands elsewhere:

    <!-- include: charts/README.md#upgrade-and-rollback -->   a section with its heading
    <!-- body: charts/README.md#backup -->                    a section without its heading, one level up
    <!-- body: charts/README.md# -->                          what stands between the title and the first heading
    <!-- body: charts/README.md -->                           everything but the title

Each section stands on one page. A page that has a whole file leaves out what another page includes of it, and links
there at its end. A link to a file or section is led to the page that has it; a link to a file that no page has becomes
its text, with the path. A link whose text is a file's name gets the title of the page instead, one to its own page
becomes text, and one to a notebook downloads it. Whatever cannot be found is an error with its place.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import flowcharts

HERE = Path("libs/docs")
HOME = "Home"
"""The tab whose pages stand at the top of the site."""
OWN = HERE / "pages"
NOTEBOOKS = Path("examples/notebooks")
FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<language>[\w-]*)")
HEADING = re.compile(r"^(#{1,6}) (.*?)\s*$")
INCLUDE = re.compile(r"^<!-- (include|body): ([^#\s]+)(?:#([\w-]*))?(?<! ) -->$")
COMMENT = re.compile(r"^<!--.*?-->\n?", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])+)\]\((?!https?:|mailto:)([^()\s]+)\)")
CODE_SPAN = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
ITEM = re.compile(r"^( *)([-*]|\d+\.) ")


class Lost(Exception):
    """A page, an included section or the target of a link that is not there."""


class Section(NamedTuple):
    """A heading with what stands below it, up to the next heading of its level. The title's anchor is empty."""

    anchor: str
    level: int
    begin: int
    body: int
    end: int


class Included(NamedTuple):
    """Lines of a file that a page has.

    ``shift``: levels to take from headings. ``under``: anchor of the page's own heading above a body. ``chosen``: a
    section that the page names, which no other page has with the whole file.
    """

    file: str
    begin: int
    end: int
    shift: int = 0
    under: str = ""
    chosen: bool = False


@dataclass
class Page:
    """A page: its address below the site, its title, and the parts that it is made of."""

    address: str
    title: str
    parts: list[Included] = field(default_factory=list[Included])
    elsewhere: list[Included] = field(default_factory=list[Included])
    """Sections of its files that another page has."""


def slug(heading: str) -> str:
    """Return the anchor of a heading as GitHub makes it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def outside_of_fences(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines that stand in no fence."""
    open_ticks = ""
    for number, line in enumerate(lines):
        found = FENCE.match(line)
        if open_ticks:
            if found and found["ticks"] == open_ticks and not found["language"]:
                open_ticks = ""
        elif found:
            open_ticks = found["ticks"]
        else:
            yield number, line


def sections_of(lines: list[str]) -> list[Section]:
    """Return the sections of a file in their order; the first is the whole file, below its title."""
    heads = [(n, len(head[1]), head[2]) for n, line in outside_of_fences(lines) if (head := HEADING.match(line))]
    if not heads or heads[0][1] != 1:
        raise Lost("begins with no title")
    found: list[Section] = []
    for at, (begin, level, text) in enumerate(heads):
        end = next((n for n, other, _ in heads[at + 1 :] if other <= level), len(lines))
        anchor = slug(text) if at else ""
        found.append(Section(anchor, level, begin, begin + 1, end if at else len(lines)))
    return found


class Site:
    """The pages, and where each section of each file stands.

    ``partial``: the tree below ``root`` has every page, and not every file that pages link to.
    """

    def __init__(self, root: Path, *, partial: bool = False) -> None:
        self._root = root
        self._partial = partial
        self._lines: dict[str, list[str]] = {}
        self._sections: dict[str, list[Section]] = {}
        self.tabs: dict[str, list[Page]] = {}
        table = tomllib.loads((root / HERE / "site.toml").read_text())
        for tab, pages in table.items():
            self.tabs[tab] = []
            for name, where in pages.items():
                address = f"{name}.md" if tab == HOME else f"{tab.lower()}/{name}.md"
                file = where or (OWN / address).as_posix()
                self.tabs[tab].append(self._page(address, file))
        self._leave_out()
        self._places = self._located()

    @property
    def pages(self) -> list[Page]:
        """All pages in the order of the navigation."""
        return [page for pages in self.tabs.values() for page in pages]

    @property
    def files(self) -> set[str]:
        """Every file that a page has a part of."""
        return {part.file for page in self.pages for part in page.parts}

    @property
    def copied(self) -> list[Path]:
        """Pictures and notebooks, which the site has as they are."""
        pictures = [path for path in (self._root / OWN).rglob("*.*") if path.suffix in (".svg", ".png")]
        notebooks = (self._root / NOTEBOOKS).glob("*.ipynb")
        return sorted(path.relative_to(self._root) for path in (*pictures, *notebooks))

    def navigation(self) -> list[dict[str, list[dict[str, str]]]]:
        """Return the tree that Zensical reads."""
        return [{tab: [{page.title: page.address} for page in pages]} for tab, pages in self.tabs.items()]

    def write(self, folder: Path) -> None:
        """Write every page, and what is copied, below ``folder``. Raises Lost with all that is lost."""
        lost: list[str] = []
        for page in self.pages:
            path = folder / page.address
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                path.write_text(self.text(page))
            except Lost as error:
                lost.append(str(error))
        if lost:
            raise Lost("\n".join(lost))
        for file in self.copied:
            target = folder / _copy(file)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self._root / file, target)

    def text(self, page: Page) -> str:
        """Return a page as Zensical reads it. Raises Lost."""
        text = f"# {page.title}\n\n" + "\n".join(self._part(page, part) for part in page.parts)
        moved = "\n".join(f"- {self._moved(page, each)}" for each in page.elsewhere)
        return f"{text}\n## On other pages\n\n{moved}\n" if moved else text

    def lines(self, file: str) -> list[str]:
        """Return the lines of a file of the repository. Raises Lost."""
        if file not in self._lines:
            if not (self._root / file).is_file():
                raise Lost(f"{file}: no such file")
            self._lines[file] = (self._root / file).read_text().splitlines()
        return self._lines[file]

    def sections(self, file: str) -> list[Section]:
        """Return the sections of a file. Raises Lost."""
        if file not in self._sections:
            try:
                self._sections[file] = sections_of(self.lines(file))
            except Lost as lost:
                raise Lost(f"{file}: {lost}") from None
        return self._sections[file]

    def _page(self, address: str, file: str) -> Page:
        lines = self.lines(file)
        head = HEADING.match(lines[0])
        if head is None:
            raise Lost(f"{file}: begins with no title")
        page = Page(address, head[2].replace("`", ""))
        begin, under = 1, ""
        for number, line in outside_of_fences(lines):
            if found := HEADING.match(line):
                under = slug(found[2]) if number else ""
            elif found := INCLUDE.match(line):
                page.parts.append(Included(file, begin, number))
                page.parts.append(self._included(f"{file}:{number + 1}", under, *found.groups()))
                begin = number + 1
        page.parts.append(Included(file, begin, len(lines)))
        return page

    def _included(self, place: str, under: str, how: str, source: str, anchor: str | None) -> Included:
        whole = self.sections(source)[0]
        if not anchor:
            first = [each.begin for each in self.sections(source)[1:2]] if anchor == "" else []
            return Included(source, whole.body, *(first or [whole.end]), under=under)
        found = [each for each in self.sections(source) if each.anchor == anchor]
        if len(found) != 1:
            raise Lost(f"{place}: {source}#{anchor}: {len(found)} such sections")
        [section] = found
        if how == "include":
            return Included(source, section.begin, section.end, chosen=True)
        return Included(source, section.body, section.end, section.level - 1, under, True)

    def _leave_out(self) -> None:
        """Cut what pages chose of a file out of the pages that have the whole of it."""
        chosen = [part for page in self.pages for part in page.parts if part.chosen]
        for page in self.pages:
            whole = [part for part in page.parts if not part.chosen]
            page.elsewhere = [each for part in whole for each in chosen if _has(part, each)]
            page.parts = [piece for part in page.parts for piece in ([part] if part.chosen else _without(part, chosen))]

    def _located(self) -> dict[tuple[str, int], tuple[Page, str]]:
        """Return page and anchor of every heading by file and line. Raises Lost if one stands twice."""
        places: dict[tuple[str, int], tuple[Page, str]] = {}
        for page in self.pages:
            anchors: set[str] = set()
            for part in page.parts:
                for section in self.sections(part.file):
                    inside = part.begin <= section.begin < part.end
                    if not inside and part.begin != section.body:
                        continue
                    key = (part.file, section.begin)
                    if key in places:
                        raise Lost(f"{part.file}#{section.anchor}: on {places[key][0].address} and {page.address}")
                    if inside and section.anchor in anchors:
                        raise Lost(f"{page.address}: two headings #{section.anchor}")
                    anchors |= {section.anchor} if inside else set()
                    places[key] = (page, section.anchor if inside else part.under)
        return places

    def _moved(self, page: Page, part: Included) -> str:
        line = part.begin - (1 if part.shift else 0)
        title = self.lines(part.file)[line].lstrip("# ")
        where, anchor = self._places[part.file, line]
        return f"[{title}]({self._relative(page, where.address)}{'#' + anchor if anchor else ''})"

    def _part(self, page: Page, part: Included) -> str:
        lines = self.lines(part.file)[part.begin : part.end]
        outside = dict(outside_of_fences(lines))
        prose: list[str] = []
        written: list[str] = []

        def finish() -> None:
            if prose:
                written.append(self._prose(page, part, "\n".join(prose)))
                prose.clear()

        for number, line in enumerate(lines):
            if number in outside:
                head = HEADING.match(line)
                level = "#" * max(2, len(head[1]) - part.shift) if head else ""
                prose.append(f"{level} {head[2]} {{ #{slug(head[2])} }}" if head else line)
            else:
                finish()
                written.append(line)
        finish()
        try:
            return "\n".join(_diagrams(written)) + "\n"
        except ValueError as error:
            raise Lost(f"{part.file}: {error}") from None

    def _prose(self, page: Page, part: Included, text: str) -> str:
        spans: list[str] = []

        def hide(found: re.Match[str]) -> str:
            spans.append(found[0])
            return f"\0{len(spans) - 1}\0"

        def led(found: re.Match[str]) -> str:
            return self._link(page, part.file, found[1], found[2], found[3], spans)

        hidden = CODE_SPAN.sub(hide, COMMENT.sub("", text))
        linked = LINK.sub(led, hidden)
        return re.sub(r"\0(\d+)\0", lambda found: spans[int(found[1])], _lists(linked))

    def _link(self, page: Page, file: str, picture: str, text: str, target: str, spans: list[str]) -> str:
        path, _, anchor = target.partition("#")
        source = posixpath.normpath(posixpath.join(posixpath.dirname(file), path)) if path else file
        if picture or Path(source).suffix in (".svg", ".ipynb"):
            download = "{ download }" if source.endswith(".ipynb") else ""
            return f"{picture}[{text}]({self._relative(page, _copy(Path(source)).as_posix())}){download}"
        if not (self._partial or (self._root / source).exists()):
            raise Lost(f"{file}: a link to {target}, which is not there")
        if (self._root / source / "README.md").is_file():
            source = f"{source}/README.md"
        found = self._place(source, anchor, f"{file}: a link to {target}")
        if found is None:
            shown = re.sub(r"\0(\d+)\0", lambda each: spans[int(each[1])], text)
            return text if source.rpartition("/")[2] in shown or source in shown else f"{text} (`{source}`)"
        where, at = found
        if text == posixpath.basename(source):
            text = where.title
        if where is page and not at:
            return text
        return f"[{text}]({self._relative(page, where.address)}{'#' + at if at else ''})"

    def _place(self, file: str, anchor: str, link: str) -> tuple[Page, str] | None:
        if not file.endswith(".md") or (self._partial and not (self._root / file).is_file()):
            return None
        sections = [each for each in self.sections(file) if each.anchor == anchor]
        if not sections:
            raise Lost(f"{link}, which has no such heading")
        here = (self._places.get((file, each.begin)) for each in (*sections, *([] if anchor else self.sections(file))))
        found = next((each for each in here if each is not None), None)
        return found

    @staticmethod
    def _relative(page: Page, target: str) -> str:
        return posixpath.relpath(target, posixpath.dirname(page.address) or ".")


def _copy(file: Path) -> Path:
    """Return the place of a copied file on the site."""
    return file.relative_to(OWN if OWN in file.parents else NOTEBOOKS.parent)


def _without(part: Included, chosen: list[Included]) -> Iterator[Included]:
    begin = part.begin
    for each in sorted(each for each in chosen if _has(part, each)):
        yield part._replace(begin=begin, end=each.begin - (1 if each.shift else 0))
        begin = each.end
    yield part._replace(begin=begin)


def _has(part: Included, other: Included) -> bool:
    return part.file == other.file and part.begin <= other.begin < part.end


def _diagrams(lines: list[str]) -> Iterator[str]:
    """Replace Mermaid's text by a drawing. Raises ValueError."""
    diagram: list[str] | None = None
    for line in lines:
        if line == "```mermaid":
            diagram = []
        elif diagram is None:
            yield line
        elif line == "```":
            yield flowcharts.drawn(diagram)
            diagram = None
        else:
            diagram.append(line)
    if diagram is not None:
        raise ValueError("a diagram has no end")


def _lists(text: str) -> str:
    """Put an empty line before each list, which Python-Markdown needs, and two further spaces before nested items."""
    lines: list[str] = []
    for line in text.split("\n"):
        item = ITEM.match(line)
        if item and lines and lines[-1].strip() and not ITEM.match(lines[-1]) and not _in_list(lines):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def _in_list(lines: list[str]) -> bool:
    for line in reversed(lines):
        if ITEM.match(line):
            return True
        if not line.startswith("  "):
            return False
    return False
