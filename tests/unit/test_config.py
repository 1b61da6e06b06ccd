"""`--hisparse-config`: what is read, what is refused and with which words, and whose it is."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from sglang_hisparse.config import HiSparseConfig, selects_us

KNOWN = [field.name for field in dataclasses.fields(HiSparseConfig)]


def read(**given: Any) -> HiSparseConfig:
    return HiSparseConfig.from_json(json.dumps({"host_pool_gib": 64, **given}))


def refused(text: str) -> str:
    with pytest.raises(ValueError) as caught:
        HiSparseConfig.from_json(text)
    return str(caught.value)


def test_one_key_is_enough() -> None:
    config = read()
    assert config == HiSparseConfig(host_pool_gib=64)
    assert (config.low_watermark, config.high_watermark, config.selector) == (0.85, 0.99, "auto")
    assert (config.audit, config.force_spill, config.hot_rows) == ("off", 0.0, None)


def test_every_key_is_read_and_shown() -> None:
    given = {
        "host_pool_gib": 1.5,
        "hot_rows": 4096,
        "low_watermark": 0.5,
        "high_watermark": 0.5,
        "selector": "quest",
        "page_size": 16,
        "top_k": 512,
        "recent_tokens": 64,
        "spill_order": "heat",
        "resident_graphs": False,
        "audit": "full",
        "force_spill": 0.25,
    }
    assert list(given) == KNOWN
    assert read(**given).as_dict() == given


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("host_pool_gib", 0),
        ("low_watermark", 0),
        ("high_watermark", 1),
        ("force_spill", 1),
        ("hot_rows", 1),
        ("audit", "sampled"),
        ("selector", "auto"),
    ],
)
def test_ends_of_the_ranges_are_fine(key: str, value: Any) -> None:
    assert getattr(read(**{key: value}), key) == value


@pytest.mark.parametrize(
    "text", ["", "{", "host_pool_gib=64", '{"host_pool_gib": 64,}', "{'host_pool_gib': 64}"]
)
def test_not_json(text: str) -> None:
    message = refused(text)
    assert message.startswith("--hisparse-config is not JSON (")
    assert repr(text) in message, "what was given"
    example = message.partition("Example: ")[2].strip("'")
    assert HiSparseConfig.from_json(example) == HiSparseConfig(64), "the example works"


@pytest.mark.parametrize("text", ["64", "null", '"host_pool_gib"', "[]", '["host_pool_gib"]'])
def test_not_an_object(text: str) -> None:
    assert refused(text) == f"--hisparse-config must be a JSON object, not {json.loads(text)!r}"


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("host_pool_gb", "host_pool_gib"),
        ("hotrows", "hot_rows"),
        ("low_water_mark", "low_watermark"),
        ("topk", "top_k"),
        ("recent_token", "recent_tokens"),
        ("Audit", "audit"),
    ],
)
def test_an_unknown_key_names_the_nearest(key: str, near: str) -> None:
    message = refused(json.dumps({"host_pool_gib": 64, key: 1}))
    assert message == (
        f"--hisparse-config: unknown key {key!r}. Did you mean {near!r}? Known keys: {', '.join(KNOWN)}"
    )


def test_an_unknown_key_like_no_other() -> None:
    message = refused('{"host_pool_gib": 64, "swap_in_block_size": 960}')
    assert message == (f"--hisparse-config: unknown key 'swap_in_block_size'. Known keys: {', '.join(KNOWN)}")


def test_the_host_pool_is_not_guessed() -> None:
    message = "--hisparse-config: host_pool_gib (GiB of pinned host memory) is required"
    assert refused('{"top_k": 64}') == message
    assert refused("{}") == message


@pytest.mark.parametrize(
    ("key", "high"),
    [("host_pool_gib", 1 << 20), ("low_watermark", 1), ("high_watermark", 1), ("force_spill", 1)],
)
@pytest.mark.parametrize(
    "value", [-0.001, (1 << 20) + 1, "0.5", None, True, [1], {}, float("nan"), float("inf")]
)
def test_numbers(key: str, high: int, value: Any) -> None:
    text = json.dumps({"host_pool_gib": 64, key: value})
    shown = json.loads(text)[key]
    assert refused(text) == f"--hisparse-config: {key} must be a number from 0 to {high}, not {shown!r}"


@pytest.mark.parametrize("key", ["hot_rows", "top_k", "recent_tokens"])
@pytest.mark.parametrize("value", [0, -1, 64.0, "64", True, [64]])
def test_whole_numbers(key: str, value: Any) -> None:
    message = refused(json.dumps({"host_pool_gib": 64, "selector": "quest", key: value}))
    assert message == f"--hisparse-config: {key} must be a positive whole number, not {value!r}"


@pytest.mark.parametrize(
    ("key", "value", "choices"),
    [
        ("selector", "dsa", "'auto', 'quest'"),
        ("selector", ["quest"], "'auto', 'quest'"),
        ("selector", None, "'auto', 'quest'"),
        ("audit", "on", "'off', 'sampled', 'full'"),
        ("audit", True, "'off', 'sampled', 'full'"),
        ("page_size", 8, "16, 32, 64"),
        ("page_size", 128, "16, 32, 64"),
        ("page_size", "64", "16, 32, 64"),
    ],
)
def test_choices(key: str, value: Any, choices: str) -> None:
    message = refused(json.dumps({"host_pool_gib": 64, "selector": "quest", key: value}))
    assert message == f"--hisparse-config: {key} must be one of {choices}, not {value!r}"


def test_cleaning_starts_before_spilling() -> None:
    message = refused('{"host_pool_gib": 64, "low_watermark": 0.9, "high_watermark": 0.8}')
    assert message == (
        "--hisparse-config: low_watermark 0.9 is above high_watermark 0.8; cleaning has to start before spilling, "
        "for example 0.85 and 0.99"
    )
    read(low_watermark=0.85, high_watermark=0.99)
    assert "low_watermark 0.995 is above high_watermark 0.99" in refused(
        '{"host_pool_gib": 64, "low_watermark": 0.995}'
    ), "the default counts too"


@pytest.mark.parametrize("key", ["page_size", "top_k", "recent_tokens"])
def test_quest_keys_need_quest(key: str) -> None:
    message = refused(json.dumps({"host_pool_gib": 64, key: 64}))
    assert message == (
        f'--hisparse-config: {key} belongs to Quest; add "selector": "quest", or leave it out: a DSA model brings '
        "its own top-k"
    )
    assert getattr(read(selector="quest", **{key: 64}), key) == 64


def test_options_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        read().host_pool_gib = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        (None, False),
        ("", False),
        ("{}", False),
        ('{"top_k": 2048, "device_buffer_size": 4096, "host_to_device_ratio": 2}', False),  # stock's
        ('{"host_pool_gib": 64}', True),
        ('{"host_pool_gib": null, "nonsense": 1}', True),  # ours to complain about
        ('{"top_k": 2048, "host_pool_gib": 0}', True),
        ('{"host_pool_gib": 64', True),  # not JSON, but names our key
        ("host_pool_gib=64", True),
        ("{top_k: 1}", False),
        ("[]", False),
        ('["host_pool_gib"]', False),
        ("64", False),
        ("null", False),
        ('{"inner": {"host_pool_gib": 64}}', False),
    ],
)
def test_which_texts_are_ours(text: str | None, ours: bool) -> None:
    assert selects_us(text) is ours


@pytest.mark.parametrize("value", [1, "true"])
def test_resident_graphs_are_on_or_off(value: Any) -> None:
    assert read(resident_graphs=True).resident_graphs and read().resident_graphs is None
    message = refused(json.dumps({"host_pool_gib": 64, "resident_graphs": value}))
    assert message == f"--hisparse-config: resident_graphs must be true or false, not {value!r}"


@pytest.mark.parametrize(
    ("other", "why"),
    [({"selector": "quest"}, "Quest has no decode graphs"), ({"spill_order": "heat"}, "counted")],
)
def test_resident_graphs_need_dsa_and_no_counting(other: dict[str, Any], why: str) -> None:
    message = refused(json.dumps({"host_pool_gib": 64, "resident_graphs": True, **other}))
    assert "resident_graphs" in message and why in message
