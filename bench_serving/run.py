"""Measure the systems of a configuration with stock's own client: `python -m bench_serving.run CONFIG.toml`.

    --out DIR       results folder (default: bench_serving/results/DATE-GPU-NAME); what it has is not measured again
    --model NAME    another model than the configuration's
    --only SYSTEM   these systems only; may be repeated
    --workload W    these workloads only; may be repeated
    --limit-s N     start no run that is not expected to end within N seconds from now
    --dry-run       print the plan, the commands and the estimate

An interrupted run (Ctrl-C, SIGTERM) keeps every line it has; the same command goes on with what is missing.
Exit status: 0 everything is measured, 1 something failed or is missing, 2 bad usage.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import lines, store
from .client import Client, ClientError
from .config import Config, ConfigError, System, document, parse
from .demo import Progress
from .models import Model, resolve
from .points import Point, client_arguments, missing, points, seconds, server_for, start_seconds
from .report import short_table
from .sampler import Sampler
from .scrub import Scrubber
from .serving import Server, ServerError
from .store import Store

CALL_LIMIT_S = 90.0
"""Seconds a server may take for /flush_cache or /server_info: one that hangs must not eat the others' time."""

RESULTS = Path(__file__).parent / "results"

ServerOf = Callable[[Config, Model, System, Path], Server]


class Bench:
    """One benchmark: starts servers, measures points, writes lines. `close` ends whatever runs."""

    def __init__(
        self, config: Config, model: Model, out: Store, client: Client, server_of: ServerOf, limit_s: float
    ) -> None:
        self.config, self.model, self.out, self.client = config, model, out, client
        self._progress = Progress()
        self._server_of = server_of
        self._ends = time.monotonic() + limit_s
        self._logs = Path(tempfile.mkdtemp(prefix="bench-logs-"))
        self._servers: dict[str, Server] = {}
        self._spent = self._foreseen = 0.0
        self.troubles: list[str] = []

    def run(self, todo: list[Point]) -> None:
        """Measure `todo`, its servers one after another or together."""
        systems = list({point.system.name: point.system for point in todo}.values())
        if self.config.start == "together":
            self._start(systems, todo)
            self._measure_all(todo)
            return
        for system in systems:
            own = [point for point in todo if point.system.name == system.name]
            if self._start([system], own):
                self._measure_all(own)
            self._end(system.name)

    def run_to_the_end(self, todo: list[Point]) -> str:
        """`run`, then end everything that was started, also on SIGINT and SIGTERM; the signal's name, or ""."""
        previous = {one: signal.signal(one, _interrupt) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            with self.client:
                try:
                    self.run(todo)
                except KeyboardInterrupt as error:
                    return str(error)
                finally:
                    _ignore_signals()  # one that came while servers are ended would leave the rest behind
                    self.close()
        finally:
            for one, handler in previous.items():
                signal.signal(one, handler)
        return ""

    def close(self) -> None:
        """End every server, keep the end of its log."""
        for name in list(self._servers):
            self._end(name)
        if not self.troubles:  # else the whole logs may be needed; messages name them
            shutil.rmtree(self._logs, ignore_errors=True)

    # -- servers -----------------------------------------------------------------------------------------------

    def _start(self, systems: list[System], todo: list[Point]) -> bool:
        """Start servers at once and wait for all; False where none serves. One that fails gives failed lines."""
        for system in systems:
            server = self._server_of(self.config, self.model, system, self._logs / f"{system.slug}.log")
            env = {**self.config.env, **system.env}
            self.out.command(f"server: {system.name}", ["python", *server.command[1:]], env)
            self._say(f"{system.name}: starting")
            server.launch()
            self._servers[system.name] = server
            time.sleep(self.config.stagger_s if len(systems) > 1 else 0)
        waiting = [system.name for system in systems]
        while waiting:
            for name in list(waiting):
                server = self._servers[name]
                try:
                    if server.ready():
                        waiting.remove(name)
                        server.limit_s = CALL_LIMIT_S
                        self._say(f"{name}: serves after {server.start_s:.0f} s")
                        self.out.server(name, server.start_s, server.info())
                        self._warm(name, todo)
                except (ServerError, ClientError) as error:
                    waiting = [other for other in waiting if other != name]
                    self._give_up(name, str(error), todo)
            time.sleep(0.5)
        return any(system.name in self._servers for system in systems)

    def _warm(self, name: str, todo: list[Point]) -> None:
        """An unrecorded run: the first requests of a server pay for its lazy start."""
        first = next(point for point in todo if point.system.name == name)
        if count := self.config.warmup:
            count = -(-count // first.workload.groups) * first.workload.groups
            port = self._servers[name].port
            short = {
                name: 16 for name in ("random-output-len", "gsp-output-len") if name in first.workload.flags
            }
            load = dataclasses.replace(first.workload, flags=first.workload.flags | short)
            arguments = client_arguments(self.config, self.model, load, count, count, port)
            self.client.run(arguments, self.config.start_limit_s)

    def _give_up(self, name: str, error: str, todo: list[Point]) -> None:
        """Record why no point of this system can be measured, and end its server."""
        self._trouble(f"{name}: {error}")
        for point in todo:
            if point.system.name == name:
                self.out.add(lines.failed(point, error))
        self._end(name)

    def _end(self, name: str) -> None:
        server = self._servers.pop(name, None)
        if server is not None:
            server.close()
            self.out.log(name, server.log())

    # -- points ------------------------------------------------------------------------------------------------

    def _measure_all(self, todo: list[Point]) -> None:
        for place, point in enumerate(todo, 1):
            if point.system.name not in self._servers:
                continue
            expected = self._expected(point)
            left = self._ends - time.monotonic()
            if expected > left:
                self._trouble(
                    f"{point.name}: not run, it would take about {expected:.0f} s of {max(0, left):.0f} s left"
                )
                continue
            self._say(f"{place}/{len(todo)} {point.name} (about {expected:.0f} s)")
            began = time.monotonic()
            try:
                line = self._measure(point)
                self._spent += time.monotonic() - began
                self._foreseen += seconds(self.config, point)
                if line["status"] != "ok":
                    self._trouble(
                        f"{point.name}: {line['completed']} of {line['prompts']} requests; {line.get('error')}"
                    )
                self._say(f"    {summary(line)}")
            except (ServerError, ClientError) as error:
                server = self._servers[point.system.name]
                self.out.add(lines.failed(point, str(error)), ())
                self._trouble(f"{point.name}: {error}\n{log_end(server)}")
                if not self._quiet(server):
                    self._end(point.system.name)

    def _quiet(self, server: Server) -> bool:
        """End what a failed run left on a server; False where the server is gone or does not answer."""
        try:
            if server.alive:
                server.abort(everything=True)
                server.call("/flush_cache?timeout=60", {})
        except ServerError as error:
            self._say(f"the server is given up: {error}")
            return False
        return server.alive

    def _measure(self, point: Point) -> dict[str, Any]:
        """Run the client against an emptied cache, and write the line."""
        server, load = self._servers[point.system.name], point.workload
        server.call("/flush_cache?timeout=60", {})
        count = load.prompts(point.concurrency)
        arguments = client_arguments(self.config, self.model, load, point.concurrency, count, server.port)
        self.out.command(f"client: {point.name}", ["python", "-m", "sglang.bench_serving", *arguments])
        shown = [time.monotonic()]
        pause = 1.0 if sys.stderr.isatty() else 15.0
        with Sampler(server, self.config.sample_s) as sampler:

            def follow() -> None:
                if time.monotonic() - shown[0] >= pause:
                    shown[0] = time.monotonic()
                    self._say(f"    {sampler.line()}", end="" if sys.stderr.isatty() else "\n")

            limit_s = min(load.limit_s, max(10.0, self._ends - time.monotonic()))
            raw = self.client.run(arguments, limit_s, follow)
        if not raw["completed"]:
            raise ClientError(
                f"no request was answered: {next(filter(None, raw['errors']), 'without a reason')}"
            )
        line = lines.measured(point, raw, sampler)
        self.out.add(line, sampler.samples)
        self.out.server(point.system.name, server.start_s, sampler.info)
        return line

    def _expected(self, point: Point) -> float:
        """The estimate, corrected by how far off it was so far."""
        off = self._spent / self._foreseen if self._foreseen else 1.0
        return seconds(self.config, point) * off

    def _say(self, text: str, end: str = "\n") -> None:
        self._progress.say(self.out.scrub.text(text), end=end)

    def _trouble(self, text: str) -> None:
        self.troubles.append(self.out.scrub.text(text))
        self._say(f"PROBLEM {text}")


def summary(line: dict[str, Any]) -> str:
    """One line of results for people."""
    parts = [f"{line['output_tok_s']:,.1f} output tok/s in {line['duration_s']:.1f} s"]
    if line["decode_tok_s"]:
        parts.append(f"{line['decode_tok_s']:,.1f} while decoding")
    parts.append(f"TPOT {line['tpot_ms']['median']:.1f} ms, TTFT {line['ttft_ms']['median'] / 1000:.2f} s")
    if line["hit_rate"] is not None:
        parts.append(f"{line['hit_rate']:.1%} of spilled selections hot")
    if line["most_running"] is not None:
        parts.append(f"at most {line['most_running']:.0f} ran")
    return "; ".join(parts)


def log_end(server: Server, count: int = 40) -> str:
    """The last lines of a server's log, for the screen."""
    shown = [line[:400] for line in server.log().splitlines() if "GET /metrics" not in line][-count:]
    return "\n".join(["the end of its server's log:", *shown])


def show_plan(config: Config, model: Model, planned: list[Point], todo: list[Point]) -> None:
    """What is about to run and how long it takes, roughly."""
    measuring = sum(seconds(config, point) for point in todo)
    starting = start_seconds(config, todo)
    print(f"{config.name}: {config.title or model.name}", file=sys.stderr)
    print(
        f"{len(todo)} of {len(planned)} runs to make; estimated {starting:.0f} s to start"
        f"{' servers together' if config.start == 'together' else ''} and {measuring:.0f} s to measure",
        file=sys.stderr,
    )


def dry_run(config: Config, model: Model, todo: list[Point], scrub: Scrubber) -> None:
    """Print every command."""
    for name, point in {point.system.name: point for point in todo}.items():
        server = server_for(config, model, point.system, Path("/dev/null"))
        env = {**config.env, **point.system.env}
        shown = [
            *(f"{key}={shlex.quote(value)}" for key, value in env.items()),
            shlex.join(["python", *server.command[1:]]),
        ]
        print(scrub.text(f"# server: {name}\n{' '.join(shown)}"))
    for point in todo:
        count = point.workload.prompts(point.concurrency)
        arguments = client_arguments(config, model, point.workload, point.concurrency, count, 30000)
        print(f"# client: {point.name}, {count} prompts, about {seconds(config, point):.0f} s")
        print(scrub.text(shlex.join(["python", "-m", "sglang.bench_serving", *arguments])))


def _ignore(number: int, frame: Any) -> None:
    """Nothing."""


def _interrupt(number: int, frame: Any) -> None:
    """The first signal ends the run; what follows it is ignored, as the servers have to be ended in order."""
    _ignore_signals()
    raise KeyboardInterrupt(signal.Signals(number).name)


def _ignore_signals() -> None:
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, _ignore)


def main(
    argv: Sequence[str] | None = None, client: Client | None = None, server_of: ServerOf = server_for
) -> int:
    """See the module's docstring. `client` and `server_of` are replaced by tests."""
    parser = argparse.ArgumentParser(prog="bench_serving.run", description=__doc__.split("\n")[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", metavar="NAME")
    parser.add_argument("--only", action="append", default=[], metavar="SYSTEM")
    parser.add_argument("--workload", action="append", default=[], metavar="W")
    parser.add_argument("--limit-s", type=float, default=1e9, metavar="N")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args(argv)
    try:
        text = document(options.config) | ({"model": options.model} if options.model else {})
        config = parse(text)
        planned = points(config, options.only, options.workload)
        model = resolve(config.model, config.layers)
        scrub = Scrubber({model.path: model.name, model.tokenizer: f"{model.name}-tokenizer"})
        if options.dry_run:
            dry_run(config, model, planned, scrub)
            show_plan(config, model, planned, planned)
            return 0
        found = store.environment()
        name = f"{time.strftime('%Y-%m-%d', time.gmtime())}-{store.gpu_slug(found['gpus'])}-{config.name}"
        out = Store(options.out or RESULTS / name, scrub)
        todo = missing(planned, out.lines())
    except ConfigError as error:
        print(f"bench_serving.run: {error}", file=sys.stderr)
        return 2
    show_plan(config, model, planned, todo)
    interrupted, troubles = "", []
    if todo:
        out.begin(text, found)
        bench = Bench(config, model, out, client or Client(), server_of, options.limit_s)
        interrupted, troubles = bench.run_to_the_end(todo), bench.troubles
    left = missing(planned, out.lines())
    print(short_table(list(out.lines().values())))
    for trouble in troubles:
        first, *rest = trouble.splitlines()
        print("\n".join([f"PROBLEM {first}", *(f"    {line}" for line in rest[-3:])]))
    if left:
        why = f"interrupted ({interrupted}); " if interrupted else ""
        print(f"{why}{len(left)} of {len(planned)} runs are missing, the same command goes on with them")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
