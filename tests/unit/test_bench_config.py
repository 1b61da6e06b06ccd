"""Configurations: what is read, and what is said of a bad one."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from typing import Any

import pytest

from bench_serving.config import CLIENT_FLAGS, DATASETS, ConfigError, document, parse
from bench_serving.large_shapes import footprint, shape
from bench_serving.models import resolve
from bench_serving.points import points, seconds, server_for
from bench_serving.scrub import Scrubber

CONFIGS = sorted((Path(__file__).parents[2] / "bench_serving" / "configs").glob("*.toml"))

GOOD = """
name = "n"
model = "qwen3-tiny"
[[system]]
name = "a"
role = "baseline"
[[workload]]
name = "w"
dataset = "random-ids"
concurrency = [1]
"""


def changed(old: str = "", new: str = "", **top: Any) -> dict[str, Any]:
    """GOOD with a piece of text replaced and top-level keys added."""
    assert old in GOOD
    return tomllib.loads(GOOD.replace(old, new) if old else GOOD) | top


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed(modell="x"), "unknown key 'modell'. Did you mean 'model'? Known: name, model, "),
        (
            changed('role = "baseline"', 'rolle = "baseline"'),
            "system 'a': unknown key 'rolle'. Did you mean 'role'?",
        ),
        (changed(start="both"), "start: 'both' is unknown. Possible: one, together"),
        (changed(device_tokens="8K"), "device_tokens must be a whole number, given '8K'"),
        (changed(args="--tp 8"), "args must be a list, given '--tp 8'"),
        (changed(args=[1]), "args must be a list of texts, given [1]"),
        (changed(env={"A": 1}), "env: values must be texts (in quotes), given {'A': 1}"),
        (changed(sample_s=True), "sample_s must be a number, given True"),
        (changed(estimate={"stepms": 1}), "estimate: unknown key 'stepms'. Did you mean 'step_ms'?"),
        (
            changed('role = "baseline"', 'role = "main"'),
            "system 'a': role: 'main' is unknown. Possible: baseline, ours",
        ),
        (changed('role = "baseline"', ""), 'exactly one system needs role = "baseline"'),
        (changed('dataset = "random-ids"', 'dataset = "randomids"'), "Did you mean 'random-ids'?"),
        (
            changed("concurrency = [1]", "concurrency = 1"),
            "workload 'w': concurrency must be a list, given 1",
        ),
        (changed("concurrency = [1]", "concurrency = [0]"), "number above 0, given (0,)"),
        (changed("concurrency = [1]", 'concurrency = [1]\nsystems = ["b"]'), "'b' is unknown. Possible: a"),
        (changed('name = "w"', ""), "workload 1: missing name"),
        (
            changed('name = "a"', 'name = "a"\nhisparse = { host_pool_gib = 1 }'),
            'hisparse needs launcher = "ours"',
        ),
        (
            changed('name = "a"', 'name = "a"\nlauncher = "ours"\nhisparse = { hot_rows = 1 }'),
            "hisparse needs host_pool_gib",
        ),
        (changed('name = "a"', 'name = "a"\noracle_of = "a"'), 'role = "oracle" and oracle_of go together'),
        (changed(workload=[]), "at least one [[workload]] is needed"),
    ],
)
def test_a_bad_configuration_is_refused_by_name(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(data)
    assert message in str(caught.value)


def test_unknown_flags_name_those_of_the_data_set() -> None:
    data = changed("concurrency = [1]", "concurrency = [1]\nflags = { random-inputlen = 5 }")
    with pytest.raises(ConfigError, match=r"'random-inputlen' is unknown\. Did you mean 'random-input-len'"):
        parse(data)


def test_an_unknown_model_names_what_there_is() -> None:
    with pytest.raises(ConfigError, match="glm52-shaped"):
        resolve("glm-5.2-shaped")


def test_base_fills_in_what_a_file_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(GOOD)
    (tmp_path / "b.toml").write_text('base = "a.toml"\nname = "b"\n')
    config = parse(document(tmp_path / "b.toml"))
    assert (config.name, config.model) == ("b", "qwen3-tiny")
    (tmp_path / "c.toml").write_text('base = "c.toml"\n')
    with pytest.raises(ConfigError, match="base is the name of another file"):
        document(tmp_path / "c.toml")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configurations_of_the_repository_are_good(path: Path) -> None:
    config = parse(document(path))
    planned = points(config)
    assert planned and all(seconds(config, point) > 0 for point in planned)
    assert len({point.key for point in planned}) == len(planned)
    for workload in config.workloads:
        for level in workload.concurrency:
            assert workload.prompts(level) >= level


def test_the_configurations_asked_for_are_there() -> None:
    assert {path.stem for path in CONFIGS} >= {
        "cpu_demo",
        "h200",
        "h200_bf16",
        "h200_multi_turn",
        "h200_long_document",
        "h200x8",
        "b200",
        "gh200",
    }


def test_every_system_has_the_same_budget_on_its_command_line(tmp_path: Path) -> None:
    config = parse(document(CONFIGS[0].with_name("h200.toml")))
    model = resolve("somebody/some-model")
    commands = {s.name: server_for(config, model, s, tmp_path / "log").command for s in config.systems}
    for command in commands.values():
        assert command[command.index("--max-total-tokens") + 1] == "270336"
    assert (
        "--disable-radix-cache" in commands["stock HiSparse"]
        and "--enable-hisparse" in commands["stock HiSparse"]
    )
    assert "--hisparse-config" not in commands["no tier"]
    assert "host_pool_gib" in commands["ours"][-1]


def test_8_requests_fit_the_h200_budget_and_9_do_not() -> None:
    config = parse(document(CONFIGS[0].with_name("h200.toml")))
    own, new = config.workloads[0].lengths
    pages = -(-(own + new) // 64)
    assert 8 * pages * 64 <= config.device_tokens < 9 * pages * 64


def test_flags_are_those_of_the_installed_client() -> None:
    found = importlib.util.find_spec("sglang")
    if found is None or found.origin is None:
        pytest.skip("SGLang is not installed")
    text = (Path(found.origin).parent / "benchmark" / "serving.py").read_text()
    for flag in {flag for flags in DATASETS.values() for flag in flags} | set(CLIENT_FLAGS):
        assert f'"--{flag}"' in text, flag
    for name in DATASETS:
        assert f'"{name}"' in text, name


def test_the_large_shape_has_glm52s_attention() -> None:
    config = shape("glm52-shaped")
    sizes = footprint(config)
    assert sizes.selecting == (0, 1, 2, 6, 10)
    assert sizes.kv == {"bf16": 12 * 1152, "fp8": 12 * 656}
    assert sizes.index == 5 * 132
    assert 13 < sizes.weights_gib < 16
    whole = footprint(shape("glm52-shaped", 78) | {"n_routed_experts": 256})
    assert len(whole.selecting) == 21
    assert 720 < whole.weights_gib * 1.073741824 / 2 < 760  # billions of parameters: 744 are published
    with pytest.raises(SystemExit, match="there are glm52-shaped, glm52-shaped-dense"):
        shape("glm53")


def test_scrubbing_keeps_what_is_no_path(tmp_path: Path) -> None:
    scrub = Scrubber({"/data/models/glm": "glm"})
    assert scrub("--model-path /data/models/glm --tp 8") == "--model-path glm --tp 8"
    assert scrub("File '/opt/x/y/serve.py', line 3") == "File '.../serve.py', line 3"
    assert scrub("http://127.0.0.1:30000/generate 12/16 tok/s, and/or") == (
        "http://127.0.0.1:30000/generate 12/16 tok/s, and/or"
    )
    assert scrub({"a": [f"{Path.home()}/x"], "n": 3, "api_key": "k"}) == {
        "a": [".../x"],
        "n": 3,
        "api_key": "...",
    }
