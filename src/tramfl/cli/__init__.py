"""The command line: one file per command, which parses, calls and prints.

Exit codes: 0 done, 1 the run failed or was interrupted, 2 bad usage or input.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import tramfl
from tramfl.cli import compare, faults, plan, report, reproduce, run, scenarios
from tramfl.cli.warn import warn_in_one_line
from tramfl.notation import BadInput

app = typer.Typer(
    name="tramfl",
    help="""One model travels between the sites that own the data: load-aware federated learning without a server.

    Try [bold]tramfl run[/bold] to watch one policy train, [bold]tramfl compare[/bold] to race four of them,
    and [bold]tramfl plan FILE.toml[/bold] to have a single decision explained.""",
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
app.add_typer(scenarios.app, name="scenarios")
app.command("report")(report.report)
app.command("figures")(report.figures)
app.command("faults")(faults.faults)


def main() -> None:
    """Run the command line; what a user did wrong ends in one sentence, never in a traceback."""
    warn_in_one_line()
    try:
        app()
    except BadInput as error:
        print(f"tramfl: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("tramfl: interrupted.", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        # The reader of our output has gone, as with `| head`.
        sys.stderr.close()
        sys.exit(1)
