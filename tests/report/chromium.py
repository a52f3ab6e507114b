"""A page in headless Chromium, driven by its DevTools protocol over a pipe: JSON texts that end in a zero byte."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    "--remote-debugging-pipe",
]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Chromium:
    """One tab. `complaints` are the console's warnings and errors, uncaught exceptions and failed requests."""

    def __init__(self, deadline: float = 120.0) -> None:
        assert CHROMIUM is not None
        self._deadline, self._number, self._left = deadline, 0, b""
        self.complaints: list[str] = []
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        command = [CHROMIUM, *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        # the browser reads descriptor 3 and writes 4; sh would not take descriptors of two digits
        shell = ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash", *command]
        quiet = subprocess.DEVNULL
        descriptors = (to_browser, from_browser)
        self._process = subprocess.Popen(
            shell, stdin=quiet, stdout=quiet, stderr=quiet, pass_fds=descriptors, start_new_session=True
        )
        for descriptor in descriptors:
            os.close(descriptor)
        self._session: str | None = None
        tab = self.do("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.do("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.do(f"{domain}.enable")

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    def open(self, path: Path, width: int, theme: str = "light", height: int = 900) -> None:
        """Load the file in a window of this width and with this `prefers-color-scheme`; wait until it is drawn."""
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self._loaded = False
        self.do("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._take(self._next())
        self.settle()

    def settle(self) -> None:
        """Wait until what has been changed is drawn."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def evaluate(self, expression: str) -> Any:
        """The JSON value of a JavaScript expression."""
        answer = self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def evaluate_until(self, expression: str) -> None:
        """Wait until an expression is true, also of a page that is being loaded."""
        end = time.monotonic() + self._deadline
        while not self._try(expression):
            assert time.monotonic() < end, f"not within {self._deadline} s: {expression}"
            time.sleep(0.1)

    def _try(self, expression: str) -> bool:
        try:
            return bool(self.evaluate(expression))
        except AssertionError:  # no page at this moment
            return False

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """A PNG of the whole page, or of what is in the window."""
        answer = self.do("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if getattr(self, "_session", None):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._take(answer)
        assert "error" not in answer, answer["error"]
        return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + self._deadline
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._read], [], [], max(end - time.monotonic(), 0))
            assert ready, f"no answer from Chromium within {self._deadline} s"
            read = os.read(self._read, 1 << 20)
            assert read, "Chromium has ended"
            self._left += read
        text, _, self._left = self._left.partition(b"\0")
        return dict(json.loads(text))

    def _take(self, event: dict[str, Any]) -> None:
        method, told = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif (method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert")) or method in (
            "Runtime.exceptionThrown",
            "Network.loadingFailed",
        ):
            self.complaints.append(json.dumps(told))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not told["request"]["url"].startswith(("file:", "data:")):
            self.complaints.append(f"asked for {told['request']['url']}")
