"""Input that would take a machine's memory or time is refused at once, in one line."""

import time
from pathlib import Path

import pytest

from manyhands.averaging.limits import memory_parts
from manyhands.averaging.protocol import message_limit
from manyhands.channels import limits
from manyhands.config.plain_yaml import MAX_VALUES, parse_yaml, read_yaml
from manyhands.config.resolve import parse_override, resolve
from manyhands.core.errors import UsageError
from manyhands.runs.plan import plan

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def test_aliases_that_stand_for_billions_of_values_are_refused(tmp_path: Path) -> None:
    assert len(BOMB) < 450
    file = tmp_path / "bomb.yaml"
    file.write_text(BOMB)
    began = time.perf_counter()
    with pytest.raises(UsageError, match=f"more than {MAX_VALUES} values"):
        read_yaml(file)
    with pytest.raises(UsageError, match="more than"):
        parse_override("env.kwargs={" + BOMB.strip().replace("\n", ", ") + "}")
    assert time.perf_counter() - began < 1.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &a\n  b: *a\n", "nested deeper"),
        ("[" * 2000, "cannot be read"),
        ("a: 2021-13-45", "cannot be read"),
        ('a: "\\UFFFFFFFF"', "cannot be read"),  # no character has this number
        ("a: " + "9" * 5000, "cannot be read"),
        ("x: 1\n" * 60_000, "larger than"),
        ("a: &a {b: 1}\n<<: [" + ",".join(["*a"] * 10) + "]", None),
        ("a: &a [1, 2]\nb: *a", None),
    ],
)
def test_yaml_is_read_within_bounds(text: str, said: str | None) -> None:
    if said is None:
        assert parse_yaml(text, "it")
        return
    with pytest.raises(UsageError, match=said):
        parse_yaml(text, "it")


def test_a_file_without_an_end_is_not_read_to_it() -> None:
    with pytest.raises(UsageError, match="larger than"):
        read_yaml(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("collect.lanes=100000000", "collect.lanes is 100000000"),
        ("collect.shards=100000000", "collect.shards is 100000000"),
        ("collect.steps=100000000", "collect.steps is 100000000"),
        ("net.hidden=[65536,65536,65536]", "GB are free; make net.hidden smaller"),
        ("net.hidden=[" + ",".join(["64"] * 100) + "]", "number of layers"),
    ],
)
def test_absurd_sizes_are_refused_before_anything_is_made(setting: str, said: str) -> None:
    began = time.perf_counter()
    with pytest.raises(UsageError, match=said.replace("[", r"\[")):
        plan(resolve("CartPole-v1", overrides=(parse_override(setting),)))
    assert time.perf_counter() - began < 2.0


def test_what_is_counted_beforehand_counts_the_statistics_of_inputs() -> None:
    plain, normalised = (
        plan(resolve("CartPole-v1", "ppo", overrides=({"net": {"normalise": normalise}},)))
        for normalise in (False, True)
    )
    nbytes = 2 * 4 * 4  # a mean and a scale for each of four inputs
    assert plain.spec.size == normalised.spec.size
    assert message_limit(normalised.spec) - message_limit(plain.spec) == nbytes
    kept = limits._needed(normalised.task) - limits._needed(plain.task)
    assert kept == limits.KEPT_WEIGHTS * nbytes
    taken = [memory_parts(planned)["the network (net.hidden)"] for planned in (plain, normalised)]
    assert taken[1] - taken[0] >= limits.KEPT_WEIGHTS * nbytes
