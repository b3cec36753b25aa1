"""`manyhands parent` and `manyhands child`: from options to the calls of the library."""

import argparse
from dataclasses import fields

from manyhands.averaging.listening import ListenConfig
from manyhands.averaging.protocol import AveragingConfig
from manyhands.averaging.serving import serve
from manyhands.averaging.visiting import visit
from manyhands.config.resolve import merge, parse_override


def parent(options: argparse.Namespace) -> None:
    names = [field.name for kind in (AveragingConfig, ListenConfig) for field in fields(kind)]
    serve(
        options.env,
        options.algo,
        seed=options.seed,
        name=options.name,
        directory=options.dir,
        resume=options.resume,
        config=options.config,
        recipes=options.recipes,
        settings=merge(*map(parse_override, options.set)),
        log=options.log,
        quiet=options.quiet,
        **{name: getattr(options, name) for name in names},
    )


def child(options: argparse.Namespace) -> None:
    visit(
        options.url,
        name=options.name,
        cores=options.cores,
        token_file=options.token_file,
        tls_ca=options.tls_ca,
        patience=options.patience,
        wait=options.wait,
        max_memory=options.max_memory,
        max_envs=options.max_envs,
        max_message=options.max_message,
        allow=options.allow,
        quiet=options.quiet,
    )
