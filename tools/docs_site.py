"""A hook of MkDocs: links from the docs into the rest of the repository become plain text on the site.

The pages are also read in the repository, where such links work. The site has the pages of `docs/` only.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def inside(markdown: str, page: str) -> str:
    """The text of a page without links that leave `docs/`.

    Args:
        markdown: the page.
        page: its path below `docs/`.
    """

    def link(match: re.Match[str]) -> str:
        target = match[2]
        if re.match(r"[a-z]+:", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        return match[1] if path.startswith("../") else match[0]

    return _LINK.sub(link, markdown)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """What MkDocs calls for each page."""
    return inside(markdown, page.file.src_uri)
