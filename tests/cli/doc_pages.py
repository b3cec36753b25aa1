"""The README and the pages of the documentation, as their readers use them.

What a block of code is for is said by its language:

    sh       commands that run as they stand, one block after the other, in a directory of the page's own
    python   a program that runs there as well
    any      a file whose name stands in a comment in the first line; it is saved there (python, yaml, toml)
    console  commands behind a prompt, for other machines, longer times or packages from the network; each
             `manyhands` line is parsed by the program's own parser and its settings are looked up
    py       a program that is compiled, but does not run
    text     what is printed, or a drawing
"""

import argparse
import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from manyhands.cli import main as cli
from manyhands.config.resolve import parse_override, resolve

ROOT = Path(__file__).parents[2]
README = "README.md"
PAGES = [README, *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```$", re.M | re.S)
FILE = re.compile(r"# ([\w./-]+\.(?:py|yaml|toml))\n")
PROMPT = re.compile(r"(?:[\w@-]+)?\$ (.*)")
LANGUAGES = ("sh", "python", "yaml", "toml", "console", "py", "text")
SETTABLE = ("train", "parent", "settings")
"""Commands whose --set is looked up."""


@dataclass(frozen=True)
class Block:
    """A piece of code, its language, and its line in the page."""

    page: str
    line: int
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """What a reader would save it as."""
        found = FILE.match(self.text)
        return None if found is None else found.group(1)

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    def commands(self) -> list[str]:
        """What stands behind prompts, or else every line."""
        joined = self.text.replace("\\\n", "")
        if self.language == "console":
            return [found.group(1) for line in joined.splitlines() if (found := PROMPT.fullmatch(line))]
        return [line for line in joined.splitlines() if line.strip()]


def blocks(page: str) -> list[Block]:
    """All of a page, in order."""
    text = (ROOT / page).read_text()
    found = []
    for match in FENCE.finditer(text):
        indent, language, body = match.groups()
        lines = [line.removeprefix(indent) for line in body.splitlines(keepends=True)]
        found.append(Block(page, text.count("\n", 0, match.start()) + 1, language, "".join(lines)))
    return found


def commands(page: str, word: str) -> list[list[str]]:
    """The words of all `manyhands word` commands that a page shows behind prompts."""
    shown = (line for block in blocks(page) if block.language == "console" for line in block.commands())
    split = (shlex.split(line, comments=True) for line in shown)
    return [words for words in split if words[:2] == ["manyhands", word]]


def follow(page: str, path: Path) -> Iterator[Block]:
    """Do in the directory `path` all that a reader of the page can do there; yields what was run."""
    for block in blocks(page):
        if block.file is not None:
            save(block, path)
        elif block.language in ("sh", "python"):
            shell = ["bash", "-e", "-c"] if block.language == "sh" else [sys.executable, "-c"]
            run([*shell, block.text], path, block.where)
            yield block


def save(block: Block, path: Path) -> None:
    assert block.file is not None
    target = path / block.file
    target.parent.mkdir(exist_ok=True)
    target.write_text(block.text)
    if target.name == "pyproject.toml":
        install(tomllib.loads(block.text)["project"], path)


def install(project: dict[str, Any], path: Path) -> None:
    """What `pip install -e .` would write for entry points to be found."""
    metadata = path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    text = ""
    for group, points in project["entry-points"].items():
        text += f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
    (metadata / "entry_points.txt").write_text(text)


def run(command: list[str], path: Path, where: str) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{where}: {command[-1]}\n{done.stdout}{done.stderr}"
    return done.stdout


class ParsedError(Exception):
    """Not wrong at all: the program's own parser has taken the words."""


def check_command(line: str) -> bool:
    """Whether a line can be checked without running it, which it is: AssertionError if it is wrong."""
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        del words[0]
    if words[:1] == ["make"]:
        subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, check=True)
    elif words[:2] == ["pip", "install"]:
        check_extras(words)
    elif words[:1] == ["manyhands"]:
        check_words(words[1:])
    else:
        return False
    return True


def check_extras(words: list[str]) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words:
        if found := re.fullmatch(r"\.\[(.*)\]", word):
            assert set(found.group(1).split(",")) <= set(known), word


def check_words(words: list[str]) -> None:
    """Give the words to the program, which ends as soon as its parser has taken all of them."""
    parse, depth = argparse.ArgumentParser.parse_known_args, 0

    def parse_and_end(self: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal depth
        depth += 1
        try:
            options, unknown = parse(self, *arguments, **named)
        finally:
            depth -= 1
        if depth or (words[0] == "sweep" and self.prog == "manyhands"):  # sweeps have options of their own
            return options, unknown
        assert not unknown, f"{words}: {unknown}"
        check_settings(words, options)
        raise ParsedError

    path = list(sys.path)
    try:
        with patch.object(argparse.ArgumentParser, "parse_known_args", parse_and_end):
            cli.main(words)
    except ParsedError:
        pass
    except SystemExit as error:
        raise AssertionError(f"manyhands {shlex.join(words)} is refused") from error
    finally:
        sys.path[:] = path


def check_settings(words: list[str], options: Any) -> None:
    """Of a command that trains: that its algorithm exists, and all that it sets."""
    algo = getattr(options, "algo", None)
    if words[0] in SETTABLE and options.env is not None and ":" not in (algo or ""):
        overrides = tuple(parse_override(text) for text in options.set)
        resolve(options.env, algo, None, overrides)


def check_syntax(block: Block) -> None:
    if block.language in ("python", "py"):
        ast.parse(block.text)
    elif block.language in ("sh", "console"):
        for line in block.commands():
            subprocess.run(["bash", "-n", "-c", line], check=True)
