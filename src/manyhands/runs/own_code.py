"""A run's own code, where it cannot be found: where it was, or how to give it again."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from manyhands.core.errors import MissingCodeError, UsageError
from manyhands.runs.store import Run


@contextmanager
def explained(run: Run) -> Iterator[None]:
    """Say of an environment that cannot be imported here where the run was made, or that it has no name."""
    try:
        yield
    except MissingCodeError as error:
        if of_callable(run.config().env.id):
            path = str(run.path)
            raise UsageError(
                f"{path} was trained on a callable, which has no name to import it by; give it again: "
                f"manyhands.load({path!r}, env=f) or manyhands.train(f, resume={path!r})"
            ) from error
        made_in = next((row["directory"] for row in reversed(run.events()) if "directory" in row), None)
        if isinstance(made_in, str) and made_in != str(Path.cwd()):
            raise MissingCodeError(
                f"{error}; the run was made in {made_in}: cd {shlex.quote(made_in)}"
            ) from error
        raise


def of_callable(env_id: str) -> bool:
    """Return whether an environment is a callable that no command line can name: a script's, or nameless."""
    name = env_id.partition(":")[2]
    return "<" in env_id or env_id.startswith("__main__:") or name == "callable" or "." in name
