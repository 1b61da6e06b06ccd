"""One self-contained HTML page: the plan with its inputs as sliders. Values equal to the command's (web/plan.js)."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sglang_hisparse import pin
from sglang_hisparse.planning.gpus import GPUS
from sglang_hisparse.planning.inputs import Inputs
from sglang_hisparse.planning.known_models import KNOWN
from sglang_hisparse.planning.models import Model, find_model

WEB = Path(__file__).parent / "web"


def page(inputs: Inputs) -> str:
    """The page's text, set to `inputs`. It loads nothing and works from a file."""
    parts = {
        "page.css": (WEB / "page.css").read_text(encoding="utf-8"),
        "plan.js": (WEB / "plan.js").read_text(encoding="utf-8"),
        "page.js": (WEB / "page.js").read_text(encoding="utf-8"),
    }
    text = (WEB / "page.html").read_text(encoding="utf-8")
    text = re.sub(r"/\*\{\{(.+?)\}\}\*/", lambda found: parts[found[1]], text)
    data = json.dumps(page_data(inputs)).replace("<", "\\u003c")  # nothing in it can end the script element
    return text.replace("{{version}}", pin.PACKAGE).replace("{{data}}", data)


def page_data(inputs: Inputs) -> dict[str, Any]:
    """What the page's scripts read: facts of models and GPUs, and the options to start from."""
    models = {inputs.model.name: inputs.model} | {name: find_model(name) for name in KNOWN}
    return {
        "models": {name: model_data(model) for name, model in models.items()},
        "gpus": {name: asdict(gpu) for name, gpu in GPUS.items()},
        "inputs": input_data(inputs),
    }


def model_data(model: Model) -> dict[str, Any]:
    """A model's facts as JSON."""
    return {**asdict(model), "default_dtype": model.default_dtype}


def input_data(inputs: Inputs) -> dict[str, Any]:
    """Options by name, model and GPU by theirs."""
    fields = {name: getattr(inputs, name) for name in Inputs.__dataclass_fields__}
    return {**fields, "model": inputs.model.name, "gpu": inputs.gpu.name}
