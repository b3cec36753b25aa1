"""The options of each command, built only for the one that is called."""

from pathlib import Path
from typing import Any

from manyhands.cli.options import (
    add_algo,
    add_allow,
    add_debug,
    add_quiet,
    add_recipes,
    add_run,
    add_setting,
    add_settings,
    add_told,
    parse_int,
)


def add_train(train: Any) -> None:
    train.description = (
        "Train an agent on a Gymnasium environment. Settings come from a tuned recipe where there is one for "
        "the environment, else from general ones; `manyhands settings ENV` prints them all."
    )
    train.add_argument("env", nargs="?", metavar="ENV", help="a Gymnasium id, or module:callable")
    add_algo(train)
    add_setting(train, "--workers", type=int)
    add_setting(train, "--mode")
    train.add_argument(
        "--barrier",
        choices=("on", "off"),
        help="a3c, adqn: whether cores wait for one another after every episode (default: on)",
    )
    train.add_argument(
        "--channel",
        metavar="URL",
        help="who plays: a broker's workers, amqp://user:password@host:5672/; a Ray cluster, ray (started "
        "here), ray:auto or ray://host:10001 (default: $MANYHANDS_CHANNEL, else processes here)",
    )
    add_setting(train, "--cpus-per-worker", type=float)
    train.add_argument(
        "--executors", type=int, default=1, help="learners that share a broker's data, of --steps each"
    )
    train.add_argument("--join", metavar="RUN", help="be one more executor of a run at the broker")
    add_allow(train)
    add_setting(train, "--steps", type=parse_int)
    add_setting(train, "--minutes", type=float)
    add_setting(train, "--until")
    add_setting(train, "--seed", type=int)
    train.add_argument(
        "--start-from",
        metavar="RUN[:CHECKPOINT]",
        help="begin with the agent of another run, by name or path, whose network is the same: its best "
        "tested one, or such as last; settings are the new run's own, and its optimizer starts afresh",
    )
    add_run(train)
    add_told(train)
    add_quiet(train)
    add_debug(train)


def add_eval(judge: Any) -> None:
    judge.add_argument("run", metavar="RUN", help="a run's name or path")
    judge.add_argument("--episodes", type=int, default=100, help="how many (default: 100)")
    judge.add_argument("--seed", type=int, help="of the episodes (default: 1000000)")
    judge.add_argument("--sample", action="store_true", help="sample actions instead of taking the likeliest")
    _add_which(judge)
    judge.add_argument("--json", action="store_true", help="one JSON object on stdout")
    add_debug(judge)


def _add_which(parser: Any) -> None:
    parser.add_argument(
        "--which",
        metavar="CHECKPOINT",
        help="best, last or, of a parent, such as exchange-000500 (default: the best tested, else the last)",
    )


def add_play(play: Any) -> None:
    play.add_argument("run", metavar="RUN", help="a run's name or path")
    play.add_argument("--out", type=Path, default=Path("play.mp4"), help=".mp4 or .gif (default: play.mp4)")
    play.add_argument("--episodes", type=int, default=1, help="how many, one after the other (default: 1)")
    play.add_argument("--seed", type=int, default=0, help="of the first episode (default: 0)")
    _add_which(play)
    add_debug(play)


def add_worker(worker: Any) -> None:
    worker.description = (
        "A daemon that knows nothing but the broker. It waits for runs, plays for all of them, and waits "
        "again. Start it before or after `manyhands train --channel URL`, on any machine; Ctrl-C ends it."
    )
    worker.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        help="amqp://user:password@host:5672/, or amqps:// for TLS (default: $MANYHANDS_CHANNEL)",
    )
    worker.add_argument("--procs", type=int, help="processes that play (default: one per core)")
    worker.add_argument("--once", action="store_true", help="leave when the first run is over")
    worker.add_argument(
        "--max-memory", type=int, metavar="MB", help="that a process may hold (default: 80 %% of all, shared)"
    )
    worker.add_argument(
        "--max-lanes", type=int, default=4096, help="environments that a process plays (default: 4096)"
    )
    worker.add_argument(
        "--max-message", type=int, default=64, metavar="MB", help="of one message (default: 64)"
    )
    worker.add_argument("--name", help="how runs call this worker (default: host and process number)")
    add_allow(worker)
    add_debug(worker)


def add_broker(broker: Any) -> None:
    broker.description = (
        "Runs RabbitMQ until Ctrl-C and prints its address, with a password of its own. On loopback unless "
        "--listen says otherwise; a temporary directory unless --dir keeps it."
    )
    broker.add_argument("--listen", default="127.0.0.1", metavar="ADDRESS", help="(default: 127.0.0.1)")
    broker.add_argument("--port", type=int, default=5672, help="(default: 5672; 0 takes a free one)")
    broker.add_argument("--dir", type=Path, help="keep its queues and settings here")
    broker.add_argument("--password-file", type=Path, help="the password's first line (default: a new one)")
    broker.add_argument("--tls-cert", type=Path, help="speak TLS, with this certificate")
    broker.add_argument("--tls-key", type=Path, help="and this key")
    add_debug(broker)


def add_runs(runs: Any) -> None:
    add_debug(runs)


def add_show(show: Any) -> None:
    show.add_argument("run", metavar="RUN", help="a run's name or path")
    show.add_argument("--out", type=Path, help="where to write the learning curve (default: RUN/plots/)")
    add_debug(show)


def add_events(events: Any) -> None:
    events.add_argument("run", metavar="RUN", help="a run's name or path")
    events.add_argument("--follow", action="store_true", help="go on with what happens now")
    events.add_argument("--json", action="store_true", help="one JSON object a line")
    add_debug(events)


def add_rm(rm: Any) -> None:
    rm.description = "Remove runs from the disk, for good. Runs in use and directories that are no runs stay."
    rm.add_argument("run", metavar="RUN", nargs="+", help="a run's name or path")
    rm.add_argument("--yes", action="store_true", help="do not ask")
    add_debug(rm)


def add_show_settings(settings: Any) -> None:
    settings.description = (
        "Every setting of a run, its value here, where that comes from, and what it means; without ENV the "
        "algorithm's general settings. Nothing is started."
    )
    settings.add_argument("env", nargs="?", metavar="ENV", help="a Gymnasium id, or module:callable")
    add_algo(settings)
    settings.add_argument("--config", type=Path, metavar="FILE", help="settings from a YAML file")
    add_settings(settings)
    add_recipes(settings)
    settings.add_argument("--json", action="store_true", help="one JSON list on stdout")
    add_debug(settings)


def add_print_recipe(recipe: Any) -> None:
    recipe.description = (
        "Print the tuned settings for an environment as YAML: save them, change them, and train with "
        "--config FILE. Recipes of your own lie in a directory, one file for each environment: "
        "LunarLander.yaml holds default_algo, settings for all algorithms under `all`, and those of each "
        "under its name."
    )
    recipe.add_argument("env", metavar="ENV", help="a Gymnasium id, or module:callable")
    add_algo(recipe)
    add_recipes(recipe)
    add_debug(recipe)


def add_sweep(sweep: Any) -> None:
    sweep.add_argument("sweep", metavar="NAME", choices=("averaging",), help="averaging: alpha times beta")
    sweep.add_argument("rest", nargs="...", metavar="...", help="its options; --help lists them")
