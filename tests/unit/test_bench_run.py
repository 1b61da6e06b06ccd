"""The runner against servers and a client that only pretend: order, lines, failures, interruption, continuation."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bench_serving import run
from bench_serving.client import Client
from bench_serving.config import Config, System
from bench_serving.models import Model
from bench_serving.serving import ServerError
from bench_serving.timeline import decode_rate, server_rate, starts

CONFIG = """
name = "pretended"
model = "qwen3-tiny"
start = "{start}"
stagger_s = 0
sample_s = 0.05
warmup = 0
[[system]]
name = "no tier"
role = "baseline"
[[system]]
name = "ours"
role = "ours"
launcher = "ours"
hisparse = {{ host_pool_gib = 1 }}
[[workload]]
name = "cold"
dataset = "random-ids"
concurrency = [4, 1]
[workload.flags]
random-input-len = 100
random-output-len = 10
"""


class PretendedServer:
    """What the runner uses of a server. `broken` ones do not start, `hanging` ones are lost once a run failed."""

    alive_now: ClassVar[Counter[str]] = Counter()
    broken: frozenset[str] = frozenset()
    hanging: frozenset[str] = frozenset()

    def __init__(self, system: System) -> None:
        self.system, self.port, self.start_s = system, 12345, 1.0
        self.command = [
            "/root/secret/python",
            "-m",
            "sglang.launch_server",
            "--model-path",
            "/root/secret/place",
        ]
        self.running = False
        self.steps = self.aborted = 0

    def launch(self) -> None:
        self.running = True
        self.alive_now[self.system.name] += 1

    def ready(self) -> bool:
        if self.system.name in self.broken:
            raise ServerError("the server ended with status 1 before it served\nCUDA out of memory")
        return True

    @property
    def alive(self) -> bool:
        return self.running

    def close(self) -> None:
        if self.running:
            self.alive_now[self.system.name] -= 1
        self.running = False

    def call(self, path: str, body: Any = None) -> Any:
        assert path.startswith("/flush_cache")
        if self.system.name in self.hanging and self.aborted:
            raise ServerError("the server did not answer /flush_cache (timed out)")

    def abort(self, rid: str = "", everything: bool = False) -> None:
        self.aborted += 1

    def info(self) -> dict[str, Any]:
        self.steps += 100
        counters = {
            "selected_hot": 3 * self.steps,
            "selected_missed": self.steps,
            "bytes_to_device": 1000 * self.steps,
        }
        tier = {"counters": counters, "capacity": {"hot_max_pages": 64, "device_tokens": 8192}}
        return {"model_path": "/root/secret/place", "internal_states": [{"hisparse": tier}]}

    def metrics(self) -> dict[str, float]:
        return {"sglang:num_running_reqs": 4.0, "sglang:token_usage": 0.5, "sglang:hisparse_hot_rows": 64.0}

    def log(self) -> str:
        return "line one\nServing from /root/secret/place\n"


class Setting:
    """One test's folder, configuration and client."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        monkeypatch.setenv("STAND_IN", str(folder))
        monkeypatch.setenv("RUNNER", str(os.getpid()))
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        model = Model("qwen3-tiny", "/root/secret/model", "/root/secret/words", (), 2048)
        monkeypatch.setattr(run, "resolve", lambda name, layers: model)
        monkeypatch.setattr(PretendedServer, "alive_now", Counter())
        for trouble in ("broken", "hanging"):
            monkeypatch.setattr(PretendedServer, trouble, frozenset())
        self.configure()

    def configure(self, start: str = "together", **changes: str) -> None:
        text = CONFIG.format(start=start)
        for old, new in changes.items():
            text = text.replace(old, new)
        (self.folder / "bench.toml").write_text(text)

    def plan(self, **what: str) -> None:
        """What the client does in its runs: plan(run_2="fail")."""
        plan = {name.removeprefix("run_"): action for name, action in what.items()}
        (self.folder / "plan.json").write_text(json.dumps(plan))

    def run(self, *more: str) -> int:
        def server_of(config: Config, model: Model, system: System, log: Path) -> Any:
            return PretendedServer(system)

        stand_in = Path(__file__).with_name("bench_stand_in.py")
        arguments = [str(self.folder / "bench.toml"), "--out", str(self.folder / "out"), *more]
        return run.main(arguments, Client(stand_in=stand_in), server_of)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in (self.folder / "out" / "results.jsonl").read_text().splitlines()]

    def order(self) -> list[tuple[str, int, str]]:
        return [(line["system"], line["concurrency"], line["status"]) for line in self.lines()]


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    """A benchmark of two systems at two levels."""
    return Setting(tmp_path, monkeypatch)


def test_together_goes_level_by_level(setting: Setting) -> None:
    assert setting.run() == 0
    assert setting.order() == [
        ("no tier", 4, "ok"),
        ("ours", 4, "ok"),
        ("no tier", 1, "ok"),
        ("ours", 1, "ok"),
    ]
    assert not +PretendedServer.alive_now


def test_one_after_another_goes_system_by_system(setting: Setting) -> None:
    setting.configure(start="one")
    assert setting.run() == 0
    assert [line[:2] for line in setting.order()] == [
        ("no tier", 4),
        ("no tier", 1),
        ("ours", 4),
        ("ours", 1),
    ]


def test_a_line_has_the_numbers_and_the_counters_of_its_own_run(setting: Setting) -> None:
    setting.run()
    line = next(line for line in setting.lines() if (line["system"], line["concurrency"]) == ("ours", 4))
    assert (line["prompts"], line["completed"], line["output_tok_s"]) == (4, 4, 100.0)
    assert line["decode_tok_s"] == pytest.approx(400, rel=0.01)  # 4 requests at 100 tokens a second each
    assert (line["hit_rate"], line["hot_rows"], line["bytes_to_device"]) == (0.75, 4096, 100_000)
    assert (line["tpot_ms"]["p99"], line["ttft_ms"]["median"]) == (10.0, 10.0)
    assert line["most_running"] in (4.0, None)
    sent = [json.loads(text) for text in (setting.folder / "runs").read_text().splitlines()]
    assert sent[0][sent[0].index("--max-concurrency") + 1] == "4"


def test_nothing_written_names_the_machine(setting: Setting) -> None:
    setting.plan(run_2="fail")
    setting.run()
    written = [path for path in (setting.folder / "out").rglob("*") if path.is_file()]
    assert {path.name for path in written} >= {
        "results.jsonl",
        "environment.json",
        "commands.txt",
        "config.json",
    }
    assert (setting.folder / "out" / "servers" / "ours.json").exists()
    for path in written:
        text = path.read_text()
        assert "/root" not in text and "secret" not in text and str(setting.folder) not in text, path


def test_a_failed_run_is_recorded_and_made_again(
    setting: Setting, capsys: pytest.CaptureFixture[str]
) -> None:
    setting.plan(run_1="partial", run_2="fail")
    assert setting.run() == 1
    assert [line[2] for line in setting.order()] == ["partial", "failed", "ok", "ok"]
    said = capsys.readouterr()
    assert "ended with status 3" in said.err and "no such prompt" in said.err and "line one" in said.err
    assert "2 of 4 runs are missing" in said.out
    setting.plan()
    assert setting.run() == 0
    assert setting.order()[4:] == [("no tier", 4, "ok"), ("ours", 4, "ok")]
    assert "failed" not in capsys.readouterr().out


def test_a_server_that_does_not_start_leaves_the_others(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PretendedServer, "broken", frozenset({"ours"}))
    assert setting.run() == 1
    assert Counter(line[::2] for line in setting.order()) == {("no tier", "ok"): 2, ("ours", "failed"): 2}
    assert "CUDA out of memory" in next(line["error"] for line in setting.lines() if line["system"] == "ours")
    assert not +PretendedServer.alive_now


def test_an_interrupted_run_keeps_its_lines_and_goes_on(
    setting: Setting, capsys: pytest.CaptureFixture[str]
) -> None:
    setting.plan(run_3="interrupt")
    assert setting.run() == 1
    assert len(setting.lines()) == 2
    assert not +PretendedServer.alive_now
    assert "interrupted (SIGTERM); 2 of 4 runs are missing" in capsys.readouterr().out
    client = Path("/proc", (setting.folder / "hanging").read_text())
    ends = time.monotonic() + 10
    while client.exists() and time.monotonic() < ends:
        time.sleep(0.05)
    assert not client.exists(), "the client still runs"
    with (setting.folder / "out" / "results.jsonl").open("a") as file:
        file.write('{"system": "ours", "conc')  # as if it had been killed while it wrote
    setting.plan()
    assert setting.run() == 0
    assert len((setting.folder / "runs").read_text().splitlines()) == 5
    kept = (setting.folder / "out" / "results.jsonl").read_text().splitlines()
    assert len(kept) == 5 and sum(text.endswith("conc") for text in kept) == 1


def test_a_signal_while_servers_are_ended_leaves_none_behind(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = PretendedServer.close

    def slow_close(server: PretendedServer) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        close(server)

    monkeypatch.setattr(PretendedServer, "close", slow_close)
    assert setting.run() == 0
    assert len(setting.lines()) == 4
    assert not +PretendedServer.alive_now


def test_a_run_that_takes_too_long_is_ended(setting: Setting) -> None:
    setting.configure(**{"concurrency = [4, 1]": "concurrency = [4, 1]\nlimit_s = 1"})
    setting.plan(run_1="hang")
    assert setting.run() == 1
    assert [line[2] for line in setting.order()] == ["failed", "ok", "ok", "ok"]
    assert "did not end within 1 s" in setting.lines()[0]["error"]


def test_a_server_that_hangs_after_a_failed_run_is_given_up(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PretendedServer, "hanging", frozenset({"no tier"}))
    setting.plan(run_1="fail")
    assert setting.run() == 1
    assert setting.order() == [("no tier", 4, "failed"), ("ours", 4, "ok"), ("ours", 1, "ok")]
    assert not +PretendedServer.alive_now


def test_a_run_without_any_answer_has_failed(setting: Setting) -> None:
    setting.plan(run_1="none")
    assert setting.run() == 1
    assert [line[2] for line in setting.order()] == ["failed", "ok", "ok", "ok"]
    assert setting.lines()[0]["error"] == "no request was answered: connection refused"


def test_no_run_starts_that_does_not_fit_the_limit(
    setting: Setting, capsys: pytest.CaptureFixture[str]
) -> None:
    assert setting.run("--limit-s", "1") == 1
    assert not (setting.folder / "runs").exists()
    assert "not run, it would take about" in capsys.readouterr().out


def test_results_of_other_settings_are_not_mixed(
    setting: Setting, capsys: pytest.CaptureFixture[str]
) -> None:
    assert setting.run("--only", "ours") == 0
    setting.configure(**{"host_pool_gib = 1": "host_pool_gib = 2"})
    assert setting.run() == 2
    assert "made with other settings" in capsys.readouterr().err
    setting.configure()
    assert setting.run() == 0


def test_unknown_names_are_usage_errors(setting: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    assert setting.run("--only", "our") == 2
    assert "--only 'our': there is none. Possible: no tier, ours" in capsys.readouterr().err
    assert setting.run("--workload", "warm") == 2
    assert run.main([str(setting.folder / "absent.toml")]) == 2
    assert "cpu_demo.toml" in capsys.readouterr().err


def test_dry_run_prints_commands_and_starts_nothing(
    setting: Setting, capsys: pytest.CaptureFixture[str]
) -> None:
    assert setting.run("--dry-run") == 0
    said = capsys.readouterr()
    assert said.out.count("# client:") == 4 and said.out.count("# server:") == 2
    assert "/root" not in said.out
    assert "4 of 4 runs to make; estimated" in said.err
    assert not (setting.folder / "out").exists()


def test_decode_rate_leaves_prefill_and_waiting_out() -> None:
    steps = [0.01] * 99
    assert decode_rate([1.0], [steps], 1) == pytest.approx((100.0, 0.99))
    paused = [*steps[:50], 3.0, *steps[51:]]  # another prompt was computed in between
    rate = decode_rate([1.0], [paused], 1)
    assert rate == pytest.approx((100.0, 0.98))
    both = decode_rate([1.0, 1.0], [steps, steps], 2)
    assert both == pytest.approx((200.0, 0.99))
    assert decode_rate([1.0], [[]], 1) is None


def test_requests_beyond_the_concurrency_start_when_one_ends() -> None:
    assert starts([3.0, 1.0, 1.0, 5.0], 2) == [0.0, 0.0, 1.0, 2.0]
    one_at_a_time = decode_rate([1.0, 1.0], [[0.01] * 100, [0.01] * 100], 1)
    assert one_at_a_time == pytest.approx((100.0, 2.0))


@pytest.mark.parametrize(
    ("running", "gauge", "wanted"),
    [
        ([8, 64, 64, 64, 64], [0, 13, 11_000, 12_000, 12_400], 12_000),
        ([1, 1, 1, 1], [2_170, 2_170, 318, 320], 319),  # the gauge keeps the run before
        ([8, 8, 7, 7], [0, 6_000, 9_000, 9_000], 6_000),
        ([8, 8], [2_170, 2_170], None),
        ([], [], None),
        ([4, 4], [None, None], None),  # a server without the gauge
    ],
    ids=["prefills go on", "run before", "a last request", "nothing new", "no samples", "no gauge"],
)
def test_server_rate_is_of_the_time_when_most_ran(
    running: list[int], gauge: list[float | None], wanted: float | None
) -> None:
    pairs = zip(running, gauge, strict=True)
    samples = [
        {"running": count} if rate is None else {"running": count, "gen_tok_s": rate} for count, rate in pairs
    ]
    assert server_rate(samples) == wanted
