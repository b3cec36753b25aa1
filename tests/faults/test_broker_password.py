"""A broker's password: any that can be printed, really in force, and nobody else's to read."""

import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from manyhands.channels.amqp.address import Address
from manyhands.channels.amqp.connection import BrokerError, Link
from manyhands.cli import main as cli
from manyhands.core.errors import UsageError
from manyhands.roles.broker import Broker
from manyhands.roles.broker_files import PASSWORD

PASSWORDS = (
    "before#after",
    "# first",
    " a space before and after ",
    "\"double\" 'single' `back`",
    "%41%zz 100%",
    "$HOME ${HOME} $(id) !x",
    "back\\slash\\n \\",
    "größer-日本語-🐇",
    "a/b@c:d?e&f=g;h,i|j<k>l~m^n{o}p[q]r(s)t*u+v",
    "<<>> {encrypted, x}.",
    "x" * 1000,
)


class Crowded(Broker):
    """A node with one more user for each password, because starting one for each takes too long."""

    def _passwords(self) -> dict[str, str]:
        return super()._passwords() | {f"user-{number}": word for number, word in enumerate(PASSWORDS)}

    def url_of(self, number: int) -> str:
        """As it would print the address, were this its only user."""
        alone = replace(self, user=f"user-{number}", password=PASSWORDS[number])
        return alone.url


async def nothing(link: Link) -> None:
    """To be done on a connection."""


def lets_in(url: str) -> bool:
    link = Link(Address.parse(url), nothing, 1)
    try:
        link.start()
    except BrokerError as error:
        if "refuses this user or password" not in str(error):
            raise
        return False
    finally:
        link.close()
    return True


def test_any_printable_password_opens_the_address_that_is_printed() -> None:
    with Crowded() as node:
        for number in range(len(PASSWORDS)):
            assert lets_in(node.url_of(number)), PASSWORDS[number]
            assert not lets_in(node.url_of(number).replace("@", "x@")), PASSWORDS[number]


def test_a_password_file_replaces_the_password_that_a_directory_keeps(tmp_path: Path) -> None:
    """In a directory whose name rabbitmq.conf could not hold."""
    home, file, port = tmp_path / "a #directory", tmp_path / "secret", Broker().port
    kept, command = home / PASSWORD, ["broker", "--dir", str(home), "--port", str(port)]
    file.touch(0o600)
    urls: list[str] = []
    for password in ("one #1", "two #2"):
        file.write_text(f"{password}\nmore\n")
        with running([*command, "--password-file", str(file)]) as url:
            assert Address.parse(url).password == password
            assert lets_in(url)
            assert not any(lets_in(old) for old in urls)
            urls.append(url)
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        kept.chmod(0o644)  # as older versions left it
    with running(command) as url:
        assert url == urls[-1]
        assert lets_in(url)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


@contextmanager
def running(command: list[str]) -> Iterator[str]:
    """`manyhands broker` as a process; yields the address that it prints."""
    words = [sys.executable, "-m", "manyhands", *command]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@pytest.mark.parametrize("damage", [b"", b"\n\n", b"\xff\xfe\x00", b"bell\x07", b"x" * 10_000, None])
def test_a_kept_password_that_is_damaged_is_one_line(
    tmp_path: Path, damage: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if damage is None:
        (tmp_path / PASSWORD).mkdir()
    else:
        (tmp_path / PASSWORD).write_bytes(damage)
    with pytest.raises(SystemExit) as left:
        cli.main(["broker", "--port", "0", "--dir", str(tmp_path)])
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert str(tmp_path / PASSWORD) in said
    assert said.count("\n") == 1


def test_a_password_that_cannot_be_printed_is_refused() -> None:
    with pytest.raises(UsageError, match="can be printed"):
        Broker(password="two\nlines")
