"""`python -m sglang_hisparse.patching make | apply SRC | unapply SRC | check | tree DEST`; `make help` has the targets.

Exit code: 0 fine, 1 something does not fit (one message says what), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from sglang_hisparse import pin
from sglang_hisparse.patching.apply import apply, unapply
from sglang_hisparse.patching.check import check, make_tree
from sglang_hisparse.patching.modules import OURS
from sglang_hisparse.patching.release import PatchError, check_unchanged, opened
from sglang_hisparse.patching.series import Series, folder, make, write
from sglang_hisparse.patching.stored import load


def main(argv: list[str] | None = None) -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m sglang_hisparse.patching", description=__doc__)
    parser.add_argument(
        "--release", help=f"wheel or folder of SGLang {pin.SGLANG} (default: the installed one)"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("make", help="write patches/ from the seam table and the package")
    commands.add_parser("check", help="make, compare, apply, compile and take back, against the release")
    for name, text in (("apply", "apply the series to a checkout"), ("unapply", "take it back")):
        commands.add_parser(name, help=text).add_argument("where", metavar="SGLANG_SRC")
    tree = commands.add_parser("tree", help="make a patched copy of the whole release, to serve from")
    tree.add_argument("where", metavar="DEST")
    options = parser.parse_args(argv)
    if options.command in ("apply", "unapply") and not options.where:
        parser.error(f"which checkout? make {options.command}-patches SGLANG_SRC=../sglang")
    try:
        for line in _run(options):
            print(line)
    except PatchError as error:
        print(f"{options.command}: {error}", file=sys.stderr)
        return 1
    return 0


def _run(options: argparse.Namespace) -> Iterator[str]:
    if options.command in ("apply", "unapply"):
        yield from (apply if options.command == "apply" else unapply)(options.where, load(folder()))
        return
    with opened(options.release) as root:
        series = make(root)
        if options.release is None:
            check_unchanged(series.preimages)
        if options.command == "make":
            changed = write(series, folder())
            yield f"{folder()}: {len(series.patches)} patches for SGLang {pin.SGLANG}, {len(changed)} files changed"
        elif options.command == "check":
            yield from check(root, series, folder())
        else:
            yield from _tree(root, series, Path(options.where))


def _tree(root: Path, series: Series, where: Path) -> Iterator[str]:
    make_tree(root, where)
    apply(where, series)
    guard = where / "without_package" / f"{OURS}.py"
    guard.parent.mkdir()
    guard.write_text('raise ImportError("this SGLang is patched and must not need the package")\n')
    yield f"{where / 'python'} holds a patched SGLang {pin.SGLANG}: put it first on PYTHONPATH"


if __name__ == "__main__":
    sys.exit(main())
