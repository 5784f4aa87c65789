"""Markdown pages for Sphinx: CommonMark with tables and $math$, read by markdown-it.

It knows what our pages use and warns of anything else. Links to other pages and to
examples become links within the site; files outside of it are named, not linked.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import sphinx.parsers
from docutils import nodes
from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode
from mdit_py_plugins.dollarmath import dollarmath_plugin
from sphinx.addnodes import pending_xref
from sphinx.util import logging

READER = MarkdownIt("commonmark").enable("table").use(dollarmath_plugin, double_inline=True)
LOGGER = logging.getLogger(__name__)

GALLERIES = {"use": "examples", "extend": "extending"}
"""Folders of examples, and those of their pages."""

WRAPPERS = {
    "paragraph": nodes.paragraph,
    "blockquote": nodes.block_quote,
    "bullet_list": nodes.bullet_list,
    "list_item": nodes.list_item,
    "strong": nodes.strong,
    "em": nodes.emphasis,
}


class Parser(sphinx.parsers.Parser):
    """Markdown to docutils."""

    supported = ("markdown",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        page = _Page(document)
        for block in SyntaxTreeNode(READER.parse(inputstring)).children:
            page.add(block)


class _Page:
    """The document being built, and the sections that are open, by level."""

    def __init__(self, document: nodes.document) -> None:
        self.document = document
        self.open: list[tuple[int, nodes.Element]] = [(0, document)]

    def add(self, block: SyntaxTreeNode) -> None:
        if block.type != "heading":
            self.open[-1][1].extend(self.convert(block))
            return
        level = int(block.tag[1:])
        while self.open[-1][0] >= level:
            self.open.pop()
        title = nodes.title("", "", *self.inside(block))
        section = nodes.section("", title, names=[nodes.fully_normalize_name(title.astext())])
        self.document.note_implicit_target(section, section)
        self.open[-1][1].append(section)
        self.open.append((level, section))

    def inside(self, node: SyntaxTreeNode) -> list[nodes.Node]:
        return [made for child in node.children for made in self.convert(child)]

    def convert(self, node: SyntaxTreeNode) -> list[nodes.Node]:
        if node.type == "inline":
            return self.inside(node)
        if node.type in WRAPPERS:
            made = WRAPPERS[node.type]()
            made.extend(self.inside(node))
            return [made]
        make = getattr(self, f"_{node.type}", None)
        if make is None:
            LOGGER.warning("Markdown pages know no %s.", node.type, location=self._place(node))
            return []
        return [make(node)]

    def _place(self, node: SyntaxTreeNode) -> str:
        line = node.map[0] + 1 if node.map else ""
        return f"{self.document['source']}:{line}"

    def _text(self, node: SyntaxTreeNode) -> nodes.Node:
        return nodes.Text(node.content)

    def _softbreak(self, node: SyntaxTreeNode) -> nodes.Node:
        return nodes.Text("\n")

    def _hr(self, node: SyntaxTreeNode) -> nodes.Node:
        return nodes.transition()

    def _ordered_list(self, node: SyntaxTreeNode) -> nodes.Node:
        first = int(node.attrs.get("start", 1))
        return nodes.enumerated_list("", *self.inside(node), enumtype="arabic", start=first)

    def _html_block(self, node: SyntaxTreeNode) -> nodes.Node:
        if not node.content.startswith("<!--"):
            LOGGER.warning("Markdown pages know no HTML.", location=self._place(node))
        return nodes.comment(node.content, node.content)

    def _code_inline(self, node: SyntaxTreeNode) -> nodes.Node:
        return nodes.literal(node.content, node.content)

    def _code_block(self, node: SyntaxTreeNode) -> nodes.Node:
        return nodes.literal_block(node.content, node.content, language="none")

    def _fence(self, node: SyntaxTreeNode) -> nodes.Node:
        return nodes.literal_block(node.content, node.content, language=node.info or "none")

    def _math_inline(self, node: SyntaxTreeNode) -> nodes.Node:
        return nodes.math(node.content, node.content)

    def _math_block(self, node: SyntaxTreeNode) -> nodes.Node:
        return nodes.math_block(node.content, node.content, number=None)

    def _image(self, node: SyntaxTreeNode) -> nodes.Node:
        return nodes.image(uri=node.attrs["src"], alt=node.content)

    def _link(self, node: SyntaxTreeNode) -> nodes.Node:
        target, words = str(node.attrs["href"]), self.inside(node)
        if "://" in target:
            return nodes.reference("", "", *words, refuri=target)
        path = PurePosixPath(target.partition("#")[0])
        if path.suffix == ".md":
            page = str(path.with_suffix(""))
        elif path.suffix == ".py" and path.parent.name in GALLERIES:
            page = f"/{GALLERIES[path.parent.name]}/{path.stem}"
        else:
            return nodes.inline("", "", *words)
        return pending_xref(
            "",
            nodes.inline("", "", *words),
            refdoc=self.document.settings.env.docname,
            refdomain="std",
            reftype="doc",
            reftarget=page,
            refexplicit=True,
            refwarn=True,
        )

    def _table(self, node: SyntaxTreeNode) -> nodes.Node:
        head, *body = node.children
        columns = len(head.children[0].children)
        group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in range(columns)), cols=columns)
        rows = self._rows(head)
        if rows[0].astext().strip():
            group.append(nodes.thead("", *rows))
        group.append(nodes.tbody("", *(row for part in body for row in self._rows(part))))
        return nodes.table("", group, classes=["colwidths-auto"])

    def _rows(self, part: SyntaxTreeNode) -> list[nodes.Node]:
        return [
            nodes.row(
                "",
                *(
                    nodes.entry("", nodes.paragraph("", "", *self.inside(cell)))
                    for cell in row.children
                ),
            )
            for row in part.children
        ]


def setup(app: Any) -> dict[str, bool]:
    app.add_source_suffix(".md", "markdown")
    app.add_source_parser(Parser)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
