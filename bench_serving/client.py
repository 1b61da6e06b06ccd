"""Runs stock's `sglang.bench_serving`, many times, for one import.

Stock's client needs 10 to 20 seconds to import and often less to measure. So one process imports it and forks for
every run; the fork sets `sys.argv` and calls stock's own `cli_main`, as `python -m sglang.bench_serving` does.

    with Client(folder) as client:
        result = client.run(["--backend", "sglang", ...], limit_s=600)
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",  # the client must not hold memory of the GPU that it measures
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
}


_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux."""


class ClientError(RuntimeError):
    """The client failed, or ran past its limit. The message ends with what it printed last."""


class Client:
    """Stock's client, ready to run. `stand_in` (a Python file with `cli_main`) replaces it, for tests."""

    def __init__(self, python: str = sys.executable, stand_in: Path | None = None) -> None:
        self._folder = Path()
        self._command = [python, "-u", "-m", "bench_serving.client", *([str(stand_in)] if stand_in else [])]
        self._process: subprocess.Popen[str] | None = None
        self._runs = 0

    def __enter__(self) -> Client:
        """Starts the import; returns at once."""
        self._folder = Path(tempfile.mkdtemp(prefix="bench-client-"))
        checkout = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, (checkout, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            self._command,
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self._folder / "import.log").open("w"),
            text=True,
            start_new_session=True,  # Ctrl-C goes to the runner, which ends it in order
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(
        self, arguments: Sequence[str], limit_s: float, follow: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """One run; what stock writes with --output-details, as a dictionary. `follow` is called each second.

        ClientError where it fails or takes longer than `limit_s`.
        """
        assert self._process is not None and self._process.stdin is not None, "use `with Client() as client`"
        self._runs += 1
        output, log = (self._folder / f"{self._runs}.{kind}" for kind in ("jsonl", "log"))
        status = self._folder / f"{self._runs}.status"
        order = {
            "argv": [*arguments, "--output-file", str(output), "--output-details"],
            "log": str(log),
            "status": str(status),
        }
        began = time.monotonic()
        try:
            print(json.dumps(order), file=self._process.stdin, flush=True)
            child = self._answer(limit_s)
            while not status.exists():
                if time.monotonic() - began > limit_s:
                    raise ClientError(f"did not end within {limit_s:g} s\n{_tail(log)}")
                if self._process.poll() is not None:
                    raise ClientError(f"the client process ended\n{self._import_log()}")
                follow()
                time.sleep(0.1)
        except BrokenPipeError:
            raise ClientError(f"the client process ended\n{self._import_log()}") from None
        except BaseException:
            if "child" in locals():
                _kill(child)
            raise
        code = status.read_text()
        if code != "0" or not output.exists():
            raise ClientError(f"ended with status {code}\n{_tail(log)}")
        result: dict[str, Any] = json.loads(output.read_text().splitlines()[-1])
        output.unlink()
        return result

    def _answer(self, limit_s: float) -> int:
        """Process id of the fork; waits for the import."""
        import select

        assert self._process is not None and self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], limit_s)
        line = self._process.stdout.readline() if readable else ""
        if not line.strip():
            raise ClientError(f"stock's client could not be imported\n{self._import_log()}")
        return int(line)

    def _import_log(self) -> str:
        return _tail(self._folder / "import.log")


def _kill(group: int) -> None:
    """Kill a process group and wait until it is gone, so that the next run finds the machine idle."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
        for _ in range(100):
            time.sleep(0.02)
            os.killpg(group, 0)


def _tail(path: Path, lines: int = 25) -> str:
    """The end of what a client printed, progress bars left out."""
    if not path.exists():
        return "(it printed nothing)"
    text = path.read_text(errors="replace").replace("\r", "\n")
    kept = [line[:300] for line in text.splitlines() if line.strip() and "%|" not in line]
    return "\n".join(kept[-lines:])


# -- the process that imports and forks -----------------------------------------------------------------------


def _stock() -> Callable[[], None]:
    try:
        from sglang.benchmark.serving import cli_main
    except ImportError:  # before it moved
        from sglang.bench_serving import cli_main
    main: Callable[[], None] = cli_main
    return main


def _load(path: str) -> Callable[[], None]:
    import importlib.util

    spec = importlib.util.spec_from_file_location("stand_in", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    main: Callable[[], None] = module.cli_main
    return main


def _fork(main: Callable[[], None], order: dict[str, Any]) -> int:
    """Start one run in a process and a session of its own."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = ["sglang.bench_serving", *order["argv"]]
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    draft = Path(order["status"] + ".draft")
    draft.write_text(str(code))
    draft.rename(order["status"])
    os._exit(code)


def serve(arguments: Sequence[str]) -> None:
    """Import, then one fork for each line of standard input; answers with its process id."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the import prints is no answer
    main = _load(arguments[0]) if arguments else _stock()
    for line in sys.stdin:
        print(_fork(main, json.loads(line)), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1:])
