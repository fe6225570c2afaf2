"""Checks the links of the built documentation: ``python docs/links.py site`` lists the dead ones, and fails.

A link is dead if its file is not in the site, or its anchor is not on the page. Links to other sites are not followed.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if value is None:
                continue
            if key in ("id", "name"):
                self.anchors.add(value)
            elif (tag, key) in (("a", "href"), ("img", "src"), ("script", "src"), ("link", "href")):
                self.links.append(value)


def dead(site: Path) -> list[str]:
    """Return the dead links of a site, each with the page that holds it."""
    pages = {path.resolve(): _Page(path) for path in sorted(site.rglob("*.html"))}
    wrong = []
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            known = target in pages
            if not target.is_file() or (known and unquote(parts.fragment) not in pages[target].anchors):
                wrong.append(f"{path.relative_to(site.resolve())}: {link}")
    return wrong


if __name__ == "__main__":
    lines = dead(Path(sys.argv[1]))
    print("\n".join(lines) or "no dead link")
    sys.exit(bool(lines))
