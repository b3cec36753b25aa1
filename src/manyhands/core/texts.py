"""Text from elsewhere, made safe to show: it must not control a terminal or forge a line of a log."""

LONGEST = 1000
"""Most characters of one line that are shown."""
MOST_LINES = 200


def one_line(text: object, limit: int = LONGEST) -> str:
    """Return `text` as one line of printable characters; anything that would move a cursor is written out."""
    whole = str(text)
    shown = "".join(_visible(letter) for letter in whole[:limit])
    return shown if len(whole) <= limit else f"{shown}... ({len(whole) - limit} more characters)"


def lines(text: object, limit: int = LONGEST, most: int = MOST_LINES) -> str:
    """Return the same for several lines, such as a traceback; of too many, the first and the last ones."""
    found = str(text).splitlines()
    if len(found) > most:  # the first says what it is about, the last how it ended
        found = [found[0], f"... ({len(found) - most + 1} more lines)", *found[2 - most :]]
    return "\n".join(one_line(line.replace("\t", "    "), limit) for line in found)


def _visible(letter: str) -> str:
    # Not printable: control, format (which reverses the direction of text), surrogate, private and unassigned
    # characters, and all separators but the space.
    return letter if letter.isprintable() else letter.encode("unicode_escape", "backslashreplace").decode()


def figures(value: float) -> str:
    """Format a mean as it is read: one decimal, or as many as a small one takes to differ from 0."""
    return f"{value + 0.0:.1f}" if abs(value) >= 10 or value == 0 else f"{value:.3g}"
