"""`sglang-hisparse plan`: output, exit codes, wrong usage."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench_serving.tiny_models import RECIPES
from sglang_hisparse import cli
from sglang_hisparse.config import HiSparseConfig

ISSUE = "--model GLM-5.2 --gpu H200 --tp 8 --dp 1 --context 81920 --host-pool-gib 384"


def run(options: str) -> int:
    return cli.main(["plan", *shlex.split(options)])


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{ISSUE} --json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert {"kv_gib", "resident_requests", "tiered_requests", "min_host_pool_gib", "binding"} <= set(found)
    assert (found["model"], found["served"], found["host_pool_gib"], found["host_pool_gib_total"]) == (
        *("GLM-5.2", True, 384.0, 3072.0),
    )
    assert found["bytes_per_token"] == {"kv": 51168, "host": 51168, "index": 2772}
    assert found["resident_requests"] < found["tiered_requests"] == found["tiered_requests_total"]
    HiSparseConfig.from_json(json.dumps(found["hisparse_config"]))


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ISSUE) == 0
    printed = capsys.readouterr().out
    assert "python -m sglang_hisparse.launch_server --model-path zai-org/GLM-5.2-FP8 --tp 8" in printed
    assert "limited by" in printed and "smallest" in printed


def test_a_config_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(RECIPES["glm52-tiny"].config))
    assert run(f"--model {tmp_path} --context 32768 --json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bytes_per_token"] == {"kv": 8 * 656, "host": 8 * 656, "index": 4 * 132}


def test_like_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--like-vllm --json") == 0
    found = json.loads(capsys.readouterr().out)
    values = [
        found[key]
        for key in ("kv_gib", "resident_requests", "tiered_requests", "min_host_pool_gib", "binding")
    ]
    assert values == [17.8, 4, 39, 134, "device_pool"]
    assert run("--like-vllm --model GLM-5.3 --hot-rows 8192") == 0
    assert "4 without, 26 with HiSparse (6.50 x)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        "--model GLM-5.2 --tp 1",
        "--model GLM-5.2 --tp 8 --context 1048576",
        "--model GLM-5.2 --tp 8 --host-pool-gib 3000",
        "--model GLM-5.2 --tp 8 --host-pool-gib 384 --host-ram-gib 2048",
        "--like-vllm --tp 4",
    ],
)
@pytest.mark.parametrize("form", ["", " --json"])
def test_findings_are_1(options: str, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(options + form) == 1
    printed = capsys.readouterr().out
    if form:
        assert json.loads(printed)["tiered_requests"] >= 0
    elif "like-vllm" not in options:
        assert "FINDING" in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "--model is missing: a config.json, its folder, or one of DeepSeek-V3.2"),
        ("--model GLM-5", "--model GLM-5: no known name, and no config.json at GLM-5. Did you mean GLM-5."),
        ("--model GLM-5.2 --gpu H100", "--gpu H100: not known. Did you mean"),
        ("--model GLM-5.2 --tp 5", "--tp 5: the 64 query heads"),
        ("--model GLM-5.2 --hot-rows 64", "--hot-rows 64: a whole number from 2048 to 32768 is possible"),
        ("--model GLM-5.2 --tp 8 --host-pool-gib 0.01", "--host-pool-gib 0.01: "),
        (
            "--model GLM-5.2 --tp 8 --html /nowhere/x.html",
            "--html /nowhere/x.html: cannot be written (No such file",
        ),
        ("--like-vllm --model GLM-5.2", "--like-vllm: the published calculator knows GLM-5.3 only"),
        ("--like-vllm --gpu GH200", "--gpu GH200: the published calculator knows H200, B200, B300"),
        ("--like-vllm --html x.html", "--html with --like-vllm"),
        ("--like-vllm --context 0", "--context 0"),
    ],
)
def test_wrong_usage_is_2(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(options) == 2
    printed = capsys.readouterr()
    assert message in printed.err and not printed.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--tp many", "argument --tp: 'many' is not a whole number (example: 8)"),
        ("--tpot-ms x", "argument --tpot-ms: 'x' is not a number (example: 0.5)"),
        ("--kv-dtype int4", "argument --kv-dtype: invalid choice: 'int4'"),
    ],
)
def test_what_the_parser_refuses_is_2(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(f"--model GLM-5.2 {options}")
    assert caught.value.code == 2 and message in capsys.readouterr().err


def test_numbers_may_be_grouped(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{ISSUE.replace('81920', '81,920')} --json") == 0
    assert json.loads(capsys.readouterr().out)["context"] == 81920


def test_as_a_module_without_torch() -> None:
    """`python -m`, where neither torch nor SGLang nor numpy can be imported."""
    code = (
        "import sys, runpy; sys.modules.update(dict.fromkeys(('torch', 'sglang', 'numpy')));"
        "sys.argv = ['plan', 'plan', '--model', 'DeepSeek-V3.2', '--tp', '8'];"
        "runpy.run_module('sglang_hisparse.cli', run_name='__main__')"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "DeepSeek-V3.2 on 8 x H200" in done.stdout
