"""`hybridkv bench`: hands over to the benchmarks, which may not be part of an installation."""

import importlib

import typer

from hybridkv.service.cli.failures import fail, failing_plainly

BENCH_MODULE = "hybridkv.benchmarks.bench"


def bench(context: typer.Context) -> None:
    """Measure on this machine: `bench migration`. Takes the benchmarks' own options (see bench --help)."""
    try:
        module = importlib.import_module(BENCH_MODULE)
    except ModuleNotFoundError as error:
        if error.name != BENCH_MODULE:
            raise
        fail("the benchmarks are not part of this installation")
    with failing_plainly():
        code = module.main(context.args)
    raise typer.Exit(int(code or 0))
