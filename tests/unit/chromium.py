"""Headless Chromium over its debugging pipe, with the standard library: load a page, run script, take a picture."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    """The browser: $CHROMIUM, or the first of `NAMES` in PATH."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """One browser with one page. Use it as a context manager."""

    def __init__(self, program: str, profile: Path) -> None:
        self.program, self.profile = program, profile
        self.events: list[dict[str, Any]] = []
        self._last, self._session = 0, ""

    def __enter__(self) -> Chromium:
        read_here, write_there = os.pipe()
        read_there, write_here = os.pipe()
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ]
        shell = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'  # the browser reads descriptor 3 and writes 4
        command = ["bash", "-c", shell, "bash", str(read_there), str(write_there), self.program, *flags]
        command += ["--remote-debugging-pipe", f"--user-data-dir={self.profile}", "about:blank"]
        self._process = subprocess.Popen(
            command, pass_fds=(read_there, write_there), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(read_there)
        os.close(write_there)
        self._in, self._out = os.fdopen(read_here, "rb", 0), os.fdopen(write_here, "wb", 0)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session = ""
        self.call("Browser.close")
        self._process.wait(timeout=20)
        self._in.close()
        self._out.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One protocol command and its result; events that arrive meanwhile go to `events`."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        text = getattr(self, "_rest", b"")
        while b"\0" not in text:
            piece = self._in.read(1 << 16)
            if not piece:
                raise RuntimeError(f"{self.program} ended")
            text += piece
        line, _, self._rest = text.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def open(self, file: Path) -> None:
        """Load a file and wait until its scripts ran."""
        self.call("Page.navigate", url=file.resolve().as_uri())
        while self.run("document.readyState") != "complete" or self.run("location.protocol") != "file:":
            pass

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", "failed"))
        return answer["result"].get("value")

    def look(self, width: int, height: int, dark: bool = False, mobile: bool = False) -> None:
        """Set size of the window and colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key: str, code: int) -> None:
        """One key, where the focus is."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self, file: Path) -> None:
        """The whole page as PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        file.write_bytes(base64.b64decode(shot["data"]))
