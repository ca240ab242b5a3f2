"""The command line: one file per command, which parses, calls and prints.

Exit codes: 0 done, 1 the run failed or was interrupted, 2 bad usage or input.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, NoReturn

import typer

import tramfl
from tramfl.cli import (
    blackbox,
    cert,
    compare,
    etcd,
    faults,
    init,
    members,
    methods,
    node,
    orders,
    plan,
    preflight,
    pull,
    report,
    reproduce,
    run,
    scenarios,
    status,
    up,
    watch,
)
from tramfl.cli.warn import warn_in_one_line
from tramfl.notation import BadInput

app = typer.Typer(
    name="tramfl",
    help="""One model travels between the sites that own the data: load-aware federated learning without a server.

    Try [bold]tramfl run[/bold] to train with one policy, [bold]tramfl compare[/bold] to race four of them,
    [bold]tramfl up[/bold] to start real sites on this machine, [bold]tramfl watch[/bold] to see them travel.""",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"tramfl {tramfl.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


app.command("run")(run.run)
app.command("compare")(compare.compare)
app.command("reproduce")(reproduce.reproduce)
app.command("plan")(plan.plan)
app.command("methods")(methods.methods)
app.add_typer(scenarios.app, name="scenarios")
app.command("watch")(watch.watch)
app.command("report")(report.report)
app.command("merge")(report.merge)
app.command("figures")(report.figures)
app.command("faults")(faults.faults)
app.command("init")(init.init)
app.add_typer(cert.app, name="cert")
app.add_typer(etcd.app, name="etcd")
app.command("preflight")(preflight.preflight)
app.command("node")(node.node)
app.command("up")(up.up)
app.command("start")(orders.start)
app.command("status")(status.status)
app.command("pause")(orders.pause)
app.command("resume")(orders.resume)
app.command("stop")(orders.stop)
app.command("drain")(orders.drain)
app.command("undrain")(orders.undrain)
app.command("repair")(orders.repair)
app.command("rollback")(orders.rollback)
app.command("members")(members.members)
app.command("pull")(pull.pull)
app.command("blackbox")(blackbox.blackbox)


_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Typer's, or Click's: whichever brings it, it is what a wrong parameter is a kind of."""
_INTERRUPTED = 130
"""What Typer makes of an interrupt."""


def main() -> None:
    """Run the command line; what a user did wrong ends in one sentence, never in a traceback."""
    warn_in_one_line()
    try:
        code = app(prog_name="tramfl", standalone_mode=False)
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        # Output that nobody can take shows now, and not at the end of the process.
        sys.stdout.flush()
    except BadInput as error:
        _fail(2, str(error))
    except _UsageError as error:
        _fail(2, _sentence(error))
    except (KeyboardInterrupt, typer.Abort):
        _fail(1, "interrupted.")
    except BrokenPipeError:
        # The reader of our output has gone, as with `| head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(1, f"{where}{error.strerror or error}; what was written before can be resumed.")
    sys.exit(code or 0)


def _fail(code: int, sentence: str) -> NoReturn:
    if sentence:
        print(f"tramfl: {sentence}", file=sys.stderr)
    sys.exit(code)


def _sentence(error: Any) -> str:
    """Typer's message as a sentence; it has none where it has just printed the help."""
    message = error.format_message().rstrip(".")
    command = error.ctx.command_path if error.ctx else "tramfl"
    return f"{message}; see {command} --help." if message else ""
