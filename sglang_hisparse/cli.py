"""The console script `sglang-hisparse`. Exit code: 0 fine, 1 something does not fit, 2 wrong usage."""

from __future__ import annotations

import argparse
import sys

from sglang_hisparse import pin
from sglang_hisparse.commands import check, plan, seams

COMMANDS = (check, plan, seams)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; `options.run` is the chosen command."""
    parser = argparse.ArgumentParser(prog="sglang-hisparse", description="A host tier for SGLang's KV pool.")
    parser.add_argument(
        "--version", action="version", version=f"sglang_hisparse {pin.PACKAGE} for SGLang {pin.SGLANG}"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        child = commands.add_parser(command.NAME, help=command.HELP, description=command.HELP)
        command.add_arguments(child)
        child.set_defaults(run=command.run)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command; `argv` defaults to the process's own. Wrong usage exits with 2."""
    options = build_parser().parse_args(argv)
    code: int = options.run(options)
    return code


if __name__ == "__main__":
    sys.exit(main())
