"""The sockets that a server listens on: a port for this machine only, or a Unix socket for this user only."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

from ..support.errors import OperationError
from ..support.sockets import listen_on

BACKLOG = 64
"""Maximum number of connections that wait to be accepted; the system refuses more. An estimate."""


def listen_on_port(host: str, port: int) -> socket.socket:
    """Listen on a port; `OperationError` if it is taken, or may not be used."""
    return listen_on(host, port, BACKLOG, "use port 0 (`--port 0`) for any free port")


def listen_on_path(path: Path) -> socket.socket:
    """Listen on a Unix socket, which only this user can open. An abandoned socket is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and not _is_abandoned(path):
            raise OperationError(f"cannot listen on {path}: it is in use, or no socket")
        path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OperationError(f"cannot listen on {path}: {os.strerror(error.errno or 0) or error}") from None
    except OperationError:
        listener.close()
        raise
    return listener


def _is_abandoned(path: Path) -> bool:
    """Whether `path` is a socket on which no process listens."""
    if not stat.S_ISSOCK(path.stat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
