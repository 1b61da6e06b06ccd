"""A request that can be watched, and ended, while the server generates."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from bench_serving.serving import Answer, Server

PATIENCE_S = 120.0


class Stream:
    """One streaming /generate request, greedy, with logprobs; a thread of its own reads it.

    `rid` is never used twice: two seconds after a stream ended SGLang aborts whatever has its name then.
    """

    def __init__(self, server: Server, prompt: Sequence[int], max_new_tokens: int) -> None:
        self.rid, self.last, self.ended = uuid.uuid4().hex, None, False
        self._changed = threading.Condition()
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
        body = {
            "input_ids": list(prompt),
            "rid": self.rid,
            "stream": True,
            "return_logprob": True,
            "sampling_params": {"temperature": 0.0, "max_new_tokens": max_new_tokens, "ignore_eos": True},
        }
        self._connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
        assert self._connection.sock is not None
        self._socket = self._connection.sock
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            for line in self._connection.getresponse():
                if line.startswith(b"data: {"):
                    with self._changed:
                        self.last: dict[str, Any] | None = json.loads(line[len("data: ") :])
                        self._changed.notify_all()
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def count(self) -> int:
        """Tokens that arrived so far."""
        return len(self.last["output_ids"]) if self.last and "output_ids" in self.last else 0

    def wait(self, tokens: int) -> None:
        """Until that many tokens arrived; AssertionError where the stream ends before."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended or self.count() >= tokens, PATIENCE_S)
        assert self.count() >= tokens, f"the stream got {self.count()} of {tokens} tokens: {self.last}"

    def result(self) -> Answer:
        """The whole answer, once it is there."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended, PATIENCE_S)
        assert self.last is not None and self.ended, f"the stream did not end: {self.last}"
        return Answer.of(self.last)

    def hang_up(self) -> None:
        """Close the connection, as a client does that loses interest; the server ends the request."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def meanwhile(work: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Run `work` in a thread; its result, or its exception, is in the future."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(work)


def until(happens: Callable[[], bool], what: str, limit_s: float = PATIENCE_S) -> None:
    """Wait for `happens`; AssertionError that names `what` where it takes longer than `limit_s`."""
    end = time.monotonic() + limit_s
    while not happens():
        assert time.monotonic() < end, f"{what} did not happen within {limit_s:g} s"
        time.sleep(0.05)
