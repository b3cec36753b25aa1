"""What mkdocs makes of the repository at build time: the tables of settings, and pages for the benchmarks."""

import html
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from manyhands.cli.settings import as_yaml
from manyhands.config import algorithms
from manyhands.config.sentences import Setting, sections_of, settings_in
from manyhands.config.settings import RunConfig

ROOT = Path(__file__).parents[1]
MARK = "<!-- every setting -->"
"""Where the tables of settings go."""
SHIM = "https://unpkg.com/iframe-worker/shim"
"""What the theme would load from the network so that one can search in pages that were opened as files."""
SHOWN = (".md", ".png", ".gif")
"""What is taken over from benchmarks/, which lies outside of docs/."""


def on_files(files: Files, config: Any) -> Files:
    """The results of the benchmarks are pages, too."""
    for path in sorted((ROOT / "benchmarks").iterdir()):
        if path.suffix in SHOWN:
            page = File.generated(config, f"benchmarks/{path.name}", abs_src_path=str(path))
            files.append(page)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    source = page.file.src_uri
    if source.startswith("benchmarks/"):
        return markdown
    depth = source.count("/")
    markdown = markdown.replace(f"]({'../' * (depth + 1)}benchmarks/", f"]({'../' * depth}benchmarks/")
    return markdown.replace(MARK, settings()) if MARK in markdown else markdown


def on_post_page(output: str, page: Any, **_: Any) -> str:
    return output.replace(SHIM, f"{'../' * page.file.src_uri.count('/')}assets/worker.js")


def on_post_build(config: Any) -> None:
    """Leave out the page for addresses that do not exist, whose links work on a server's root alone."""
    (Path(config.site_dir) / "404.html").unlink(missing_ok=True)


def settings() -> str:
    """Every setting as Markdown, from the same reader as `manyhands settings`."""
    parts = []
    for section, kind in sections_of(RunConfig.algo).items():
        if section != "algo":
            parts += [f"## {section}\n", *_section(section, kind)]
    parts.append("## algo\n\nWhich there are depends on the algorithm.\n")
    for name in algorithms.BUILT_IN:
        parts += [f"### {name}\n", *_section("algo", algorithms.find(name).config)]
    return "\n".join(parts)


def _section(section: str, kind: type[Any]) -> list[str]:
    about = " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
    rows = [_row(setting) for setting in settings_in(section, kind)]
    return [
        _text(about),
        "",
        "| setting | takes | default | meaning |",
        "| --- | --- | --- | --- |",
        *rows,
        "",
    ]


def _row(setting: Setting) -> str:
    cells = (f"`{setting.path}`", setting.kind, f"`{as_yaml(setting.default)}`", _text(setting.sentence))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _text(sentence: str) -> str:
    """A sentence with what Markdown would take for its own escaped, except code."""
    parts = re.split(r"(`[^`]*`)", sentence)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_\[\]])", r"\\\1", html.escape(part, quote=False))
        for part in parts
    )
