"""Run pages in a headless Chromium, without DevTools attached, and get what they report.

    with Site({"/models": folder}) as site, Browser(site) as browser:
        print(browser.run(site.page("<script>report(navigator.userAgent)</script>")))

A page calls `report(value)` once, with any value that JSON can hold; then the browser goes on to the next page.
"""

from __future__ import annotations

import json
import mimetypes
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--mute-audio",
)
"""What tests of pages on localhost need. Those about the network keep Chromium from looking up hosts of its vendor."""

TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm", ".json": "application/json"}

CATCH = """<script>
addEventListener("error", ({error, message, filename, lineno}) => {
  report({failed: error?.stack ?? `${message} at ${filename}:${lineno}`});
});
addEventListener("unhandledrejection", ({reason}) => report({failed: String(reason?.stack ?? reason)}));
</script>
"""

REPORT = """<script>
async function report(value) {
  if (report.done) return;
  report.done = true;
  const response = await fetch("/report", {method: "POST", headers: {"X-Page": location.href}, body: JSON.stringify(value)});
  location.replace("/next?" + await response.text());
}
</script>
"""

NEXT = """<!doctype html><title>next</title><script>
(async () => {
  for (;;) {
    const response = await fetch("/wait" + location.search);
    if (response.status === 200) return location.replace(await response.text());
  }
})();
</script>
"""

WAIT = 20.0
"""Seconds after which a request for the next page is answered without one, and made again."""


class PageError(Exception):
    """A page threw an error, or reported none of its results in time."""


def find() -> str | None:
    """The path of Chromium or Chrome on this machine; `CHROMIUM` in the environment precedes."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


class Site:
    """A web server on a free port of localhost: pages that are text, and files of folders.

    Args:
        folders: the path of an address (`"/models"`) -> the folder below it.

    Attributes:
        url: the origin of its pages.
        headers: further headers of all answers.
    """

    def __init__(self, folders: Mapping[str, Path] | None = None) -> None:
        self.folders = dict(folders or {})
        self.pages: dict[str, tuple[str, str, Mapping[str, str]]] = {}
        self.browser = 0  # the number of the browser that visits now; earlier ones may still be ending
        self.next: queue.Queue[str] = queue.Queue()
        self.reports: queue.Queue[tuple[str, Any]] = queue.Queue()
        site = self

        class Handler(_Handler):
            @property
            def site(self) -> Site:
                return site

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://localhost:{self._server.server_port}"
        self._count = 0

    def page(self, text: str, path: str | None = None, headers: Mapping[str, str] | None = None) -> str:
        """Serve HTML, before which `report` is defined; the address of the page."""
        self._count += 1
        path = path or f"/page-{self._count}"
        self.file(path, f"<!doctype html><meta charset=utf-8>{REPORT}{CATCH}{text}", "text/html", headers)
        return self.url + path

    def file(self, path: str, text: str, type: str, headers: Mapping[str, str] | None = None) -> None:
        """Serve a text at a path, with a content type."""
        self.pages[path] = text, type, headers or {}

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that a page has left; print other errors."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def site(self) -> Site:
        raise NotImplementedError

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        path = address.path
        if path == "/next":
            self._answer(NEXT.encode(), "text/html")
        elif path == "/wait":
            self._answer_wait(address.query)
        elif path in self.site.pages:
            text, type, headers = self.site.pages[path]
            self._answer(text.encode(), type, headers=headers)
        elif (file := self._file(path)) is not None:
            self._answer_file(file)
        else:
            self._answer(b"not found", "text/plain", HTTPStatus.NOT_FOUND)

    def _answer_wait(self, browser: str) -> None:
        waiting = self.site.next
        try:
            url = waiting.get(timeout=WAIT) if browser == str(self.site.browser) else ""
        except queue.Empty:
            url = ""
        self._answer(url.encode(), "text/plain", HTTPStatus.OK if url else HTTPStatus.ACCEPTED)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.site.reports.put((self.headers.get("X-Page", ""), json.loads(body)))
        self._answer(str(self.site.browser).encode(), "text/plain")

    def _file(self, path: str) -> Path | None:
        for prefix, folder in self.site.folders.items():
            if path.startswith(prefix + "/"):
                file = (folder / path[len(prefix) + 1 :]).resolve()
                return file if file.is_file() and file.is_relative_to(folder.resolve()) else None
        return None

    def _answer_file(self, file: Path) -> None:
        type = TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        self.send_response(HTTPStatus.OK)
        self._headers(type, file.stat().st_size, {})
        with file.open("rb") as stream:
            shutil.copyfileobj(stream, self.wfile, 1 << 20)

    def _answer(
        self,
        body: bytes,
        type: str,
        status: HTTPStatus = HTTPStatus.OK,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        self._headers(type, len(body), headers or {})
        self.wfile.write(body)

    def _headers(self, type: str, size: int, headers: Mapping[str, str]) -> None:
        text = type.startswith("text/") or type == "application/json"
        self.send_header("Content-Type", f"{type}; charset=utf-8" if text else type)
        self.send_header("Content-Length", str(size))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Cross-Origin-Resource-Policy", "cross-origin")  # pages may ask for COEP: require-corp
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a page that fails says it itself."""


class Browser:
    """A headless Chromium that visits the pages of a site, one after the other; a site serves one browser at a time.

    Args:
        site: whose pages.
        extension: the folder of an extension that it loads.
        executable: its path; that of `find()` if None.
    """

    def __init__(self, site: Site, extension: Path | None = None, executable: str | None = None) -> None:
        self.site = site
        # Chrome, unlike Chromium, has the second one switched off.
        loads = f"--load-extension={extension}", "--disable-features=DisableLoadExtensionCommandLineSwitch"
        self._flags = ("--disable-extensions",) if extension is None else loads
        self.executable = executable or find()
        self._process: subprocess.Popen[bytes] | None = None
        self._profile: tempfile.TemporaryDirectory[str] | None = None

    def run(self, url: str, timeout: float = 600.0) -> Any:
        """Visit a page, and return what it reports.

        Raises:
            PageError: the page threw an error, or did not report within `timeout` seconds, after which Chromium is ended.
        """
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._start()
        self.site.next.put(url)
        try:
            while True:
                page, value = self.site.reports.get(timeout=timeout)
                if page == url:
                    break
        except queue.Empty:
            self.close()
            raise PageError(f"{url} reported nothing within {timeout:g} s") from None
        if isinstance(value, dict) and "failed" in value:
            raise PageError(f"{url}: {value['failed']}")
        return value

    def _start(self) -> None:
        if self.executable is None:
            raise PageError("there is no Chromium: install it, or set CHROMIUM to its path")
        self.site.browser += 1
        self.site.next = queue.Queue()  # what a browser before this one has not visited, it no longer visits
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [
                self.executable,
                *FLAGS,
                *self._flags,
                f"--user-data-dir={self._profile.name}",
                f"{self.site.url}/next?{self.site.browser}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        """End Chromium and delete its profile."""
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGTERM)
                try:
                    self._process.wait(60)
                except subprocess.TimeoutExpired:
                    os.killpg(self._process.pid, signal.SIGKILL)
                    self._process.wait()
            self._process = None
        if self._profile is not None:
            self._profile.cleanup()
            self._profile = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
