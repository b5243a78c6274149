"""The README for package indices: links into the repository are absolute (a plugin of scikit-build-core)."""

import re
import tomllib
from pathlib import Path

LINK = re.compile(r"(!?)\[([^]]*)\]\((?!https?:|mailto:|#)([^)]+)\)")


def absolute(text: str, repository: str) -> str:
    """Markdown whose relative links and pictures lead into the main branch of the repository."""
    return LINK.sub(
        lambda m: f"{m[1]}[{m[2]}]({repository}/{'raw' if m[1] else 'blob'}/main/{m[3]})",
        text,
    )


def dynamic_metadata(field: str, settings: dict[str, str]) -> dict[str, str]:
    if field != "readme" or settings:
        raise ValueError(
            f"long_description.py makes the readme, without settings; got {field} and {settings}"
        )
    urls = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    text = absolute(Path("README.md").read_text(encoding="utf-8"), urls["Repository"])
    return {"content-type": "text/markdown", "text": text}
