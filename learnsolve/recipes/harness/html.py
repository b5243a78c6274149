"""report.html: a run on one page, in one file that opens without a network."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;display:block;overflow-x:auto}"
    "th,td{padding:.25rem .75rem;border-bottom:1px solid #ddd;text-align:right}"
    "th:first-child,td:first-child{text-align:left}"
    "img{max-width:100%;height:auto}pre{background:#f6f6f6;padding:1rem;overflow-x:auto}"
)


def page(
    title: str,
    sentence: str,
    table: Iterable[list[str]],
    pictures: Mapping[str, bytes],
    settings: str,
    versions: Mapping[str, Any],
) -> str:
    """HTML of a run: what was learned, the final table (its first line names the columns), pictures (PNG),
    the settings as YAML and the versions."""
    head, *rows = table
    lines = [
        "<!DOCTYPE html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>',
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(sentence)}</p>",
        "<table>",
        _row("th", head),
        *(_row("td", row) for row in rows),
        "</table>",
    ]
    for name, content in pictures.items():
        data = base64.b64encode(content).decode()
        lines.append(f'<p><img alt="{escape(name)}" src="data:image/png;base64,{data}"></p>')
    lines += [
        f"<h2>Settings</h2><pre>{escape(settings.strip())}</pre>",
        "<h2>Versions</h2>",
        "<table>",
        *(_row("td", [name, str(value)]) for name, value in versions.items()),
        "</table></body></html>",
    ]
    return "\n".join(lines) + "\n"


def _row(tag: str, cells: list[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
