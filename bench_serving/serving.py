"""One SGLang server as a Python object: start it, talk to it, read its state, end it with all its children.

    with Server(path, ["--device", "cpu", "--dtype", "float32"], hisparse={"host_pool_gib": 0.5}) as server:
        answers = server.generate([[5, 6, 7], [8, 9]], max_new_tokens=16)

Standard library only, so that the harness can start a server of another environment (`python`).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

OURS, STOCK = "sglang_hisparse.launch_server", "sglang.launch_server"

PATCHED_TREE = "HISPARSE_PATCHED_TREE"
"""Environment variable: an SGLang checkout that `python -m sglang_hisparse.patching tree` made. Servers then run that,
through stock's launcher, without the package; so that one suite tests the plugin and the patches."""

WITHOUT_PACKAGE = "without_package"
"""Folder of such a checkout; a module in it fails every import of the package."""

CPU_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",  # stock's module flags ask for a GPU's presence, not for --device
    "OMP_NUM_THREADS": "1",  # two threads on two shared cores spend most of a small matmul waiting
    "MKL_NUM_THREADS": "1",
    "MKL_CBWR": "AVX2",  # a row's result is then the same in any batch of four rows or more
}
"""What a server on the CPU runs under, whatever the caller's own environment says."""

CPU_ARGUMENTS = ("--device", "cpu", "--dtype", "float32")
"""float32 because `--dtype auto` makes float16 of it, which CPUs compute slowly."""


class ServerError(RuntimeError):
    """A server that did not start, died, or answered with an error. The message ends with its log's end."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's result. `logprobs` are those of `tokens`; `top` holds the (logprob, token) pairs of each
    position, best first, where they were asked for."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: tuple[tuple[tuple[float, int], ...], ...]
    cached_tokens: int
    retractions: int
    finish: str

    @classmethod
    def of(cls, body: dict[str, Any]) -> Answer:
        """From one element of what /generate returns."""
        meta = body["meta_info"]
        chosen = meta.get("output_token_logprobs") or ()
        best = meta.get("output_top_logprobs") or ()
        return cls(
            tokens=tuple(body["output_ids"]),
            logprobs=tuple(entry[0] for entry in chosen),
            top=tuple(tuple((entry[0], entry[1]) for entry in position or ()) for position in best),
            cached_tokens=meta.get("cached_tokens", 0),
            retractions=meta.get("num_retractions", 0),
            finish=(meta.get("finish_reason") or {}).get("type", ""),
        )


def free_port() -> int:
    """A port of this machine that nothing listened on a moment ago.

    Below the ports that the system hands out: a server binds its port a minute after it was chosen, and until then
    any connection of the machine could have got one of those.
    """
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Server:
    """A server process and its children, in a session of their own. Starts with `start()` or `with`.

    model_path   checkpoint folder
    args         stock's command line after --model-path, --port and --hisparse-config
    hisparse     our options; None starts the launcher without them, which is stock SGLang
    stock        start stock's own launcher; excludes `hisparse`
    patched      a patched SGLang checkout to serve from, in place of the package (default: `PATCHED_TREE` names one)
    env          variables set for the server on top of this process's and, on the CPU, `CPU_ENVIRONMENT`
    log_path     file of its output (default: a temporary one, named in errors)
    limit_s      seconds it may take to start, and a request may take
    """

    def __init__(
        self,
        model_path: Path | str,
        args: Sequence[str] = (),
        hisparse: dict[str, Any] | None = None,
        *,
        stock: bool = False,
        patched: Path | str | None = None,
        env: dict[str, str] | None = None,
        log_path: Path | None = None,
        limit_s: float = 600.0,
        python: str = sys.executable,
    ) -> None:
        if stock and hisparse is not None:
            raise ValueError("Server(stock=True) takes no hisparse options; leave one of the two out")
        self.port = free_port()
        self.limit_s = limit_s
        config = [] if hisparse is None else ["--hisparse-config", json.dumps(hisparse)]
        tree = None if stock else patched or os.environ.get(PATCHED_TREE) or None
        self._cwd = Path(tree, "python") if tree else None
        self.command = [python, "-m", STOCK if stock or tree else OURS, "--model-path", str(model_path)]
        self.command += ["--host", "127.0.0.1", "--port", str(self.port), *args, *config]
        on_cpu = "cpu" in args
        self.env = {**os.environ, **(CPU_ENVIRONMENT if on_cpu else {}), **(env or {})}
        first = [str(Path(__file__).resolve().parents[1])]
        if tree:
            first = [str(Path(tree, "python")), str(Path(tree, WITHOUT_PACKAGE))]
            self.env["SGLANG_PLUGINS"] = (
                "none"  # SGLang loads the plugins named here: the package may be installed
            )
        self.env["PYTHONPATH"] = os.pathsep.join(filter(None, (*first, self.env.get("PYTHONPATH"))))
        if log_path is None:
            handle, name = tempfile.mkstemp(prefix="sglang-", suffix=".log")
            os.close(handle)
            log_path = Path(name)
        self.log_path = log_path
        self.start_s = 0.0
        self._began = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start and wait until it serves. ServerError where it ends or takes longer than `limit_s`."""
        self.launch()
        while not self.ready():
            time.sleep(0.5)

    def launch(self) -> None:
        """Start the process and return at once; `ready()` says when it serves."""
        self._began = time.monotonic()
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self.command,
                env=self.env,
                cwd=self._cwd,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ready(self) -> bool:
        """Whether it serves by now. ServerError where it has ended or takes longer than `limit_s`."""
        if self._healthy():
            self.start_s = time.monotonic() - self._began
            return True
        if self._process is None or self._process.poll() is not None:
            status = "" if self._process is None else f" with status {self._process.returncode}"
            raise self._failed(f"ended{status} before it served")
        if time.monotonic() - self._began > self.limit_s:
            self.close()
            raise self._failed(f"did not serve within {self.limit_s:g} s")
        return False

    def close(self) -> None:
        """End the server and its children at once: on SIGTERM SGLang would sleep for some seconds first.

        Safe to call twice.
        """
        process, self._process = self._process, None
        if process is None:
            return
        while _signal_session(process.pid, signal.SIGKILL):
            process.poll()
            time.sleep(0.05)
        process.wait()

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """Everything it printed so far."""
        return self.log_path.read_text(errors="replace")

    def call(self, path: str, body: Any = None) -> Any:
        """POST `body` as JSON, or GET without one; the answer parsed where it is JSON, else as text.

        ServerError on an HTTP error, with what the server said, and where the server is gone.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=self.limit_s) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            raise ServerError(f"{path} answered {error.code}: {said[:2000]}") from None
        except OSError as error:
            raise self._failed(f"did not answer {path} ({error})") from None
        return json.loads(text) if text[:1] in ("{", "[") else text

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int | Sequence[int] = 16,
        *,
        top_logprobs: int = 0,
        stop_at_eos: bool = False,
        rids: Sequence[str] | None = None,
    ) -> list[Answer]:
        """Greedy continuations of token lists, with logprobs, in the order of `prompts`.

        All prompts travel in one message, which an idle scheduler takes in at once: the same call to the same
        idle server gives the same schedule. (Pausing does not: held requests trickle in once it goes on.)
        """
        lengths = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
        sampling = [
            {"temperature": 0.0, "max_new_tokens": length, "ignore_eos": not stop_at_eos}
            for length in lengths
        ]
        body: dict[str, Any] = {
            "input_ids": [list(prompt) for prompt in prompts],
            "sampling_params": sampling,
            "return_logprob": True,
            "top_logprobs_num": top_logprobs,
        }
        if rids is not None:
            body["rid"] = list(rids)
        answers = [Answer.of(one) for one in self.call("/generate", body)]
        if not self.alive:
            raise self._failed("died while it generated")
        return answers

    def flush(self) -> None:
        """Empty the prefix cache. ServerError where requests still run."""
        self.call("/flush_cache", {})

    def pause(self, mode: str = "in_place") -> None:
        """Stop scheduling: `in_place` keeps running requests where they are, `retract` sends them back to the
        queue, `abort` ends them. New requests wait until `resume`."""
        self.call("/pause_generation", {"mode": mode})

    def resume(self) -> None:
        """Go on after `pause`."""
        self.call("/continue_generation", {})

    def abort(self, rid: str = "", everything: bool = False) -> None:
        """End the request called `rid`, or all."""
        self.call("/abort_request", {"rid": rid, "abort_all": everything})

    def info(self) -> dict[str, Any]:
        """/server_info: resolved arguments and `internal_states`."""
        answer: dict[str, Any] = self.call("/server_info")
        return answer

    def hisparse(self) -> dict[str, Any]:
        """Our part of the first rank's state: options, capacity, pages, counters. Empty with the tier off."""
        states = self.info().get("internal_states") or [{}]
        found: dict[str, Any] = states[0].get("hisparse") or {}
        return found

    def counters(self) -> dict[str, int]:
        """The tier's counters since the start."""
        return dict(self.hisparse().get("counters") or {})

    def change(self, **knobs: Any) -> None:
        """Set test knobs (`hisparse_...`) under SGLANG_HISPARSE_TEST=1. ServerError if refused."""
        answer = self.call("/set_internal_state", {"server_args": knobs})
        if answer != [True] * len(answer):
            raise ServerError(f"/set_internal_state did not take {knobs}: {answer}")

    def metrics(self) -> dict[str, float]:
        """Prometheus samples by name, labels dropped and equal names added up. Needs --enable-metrics."""
        found: dict[str, float] = {}
        for line in str(self.call("/metrics")).splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0]
                found[name] = found.get(name, 0.0) + float(value)
        return found

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=20) as answer:
                ready: bool = answer.status == 200
                return ready
        except OSError:
            return False

    def _failed(self, what: str) -> ServerError:
        lines = self.log().splitlines()[-30:]
        shown = "\n".join(line[:400] for line in lines)
        return ServerError(
            f"the server {what}\n{' '.join(self.command)}\nlog {self.log_path}, its end:\n{shown}"
        )


def _signal_session(leader: int, number: int) -> bool:
    """Send `number` to the process group of `leader`; False where none of it is left."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return False
    return True
