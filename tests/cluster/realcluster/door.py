"""The way in: accepts on a loopback port of the host and connects inside of the machine it runs on.

    door.py LISTENING_FD HOST PORT

The listening socket was made by the host and handed down; a socket keeps the network it was made in.
"""

from __future__ import annotations

import socket
import sys
import threading

CHUNK = 1 << 16
CONNECT_LIMIT_S = 5.0


def pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while chunk := source.recv(CHUNK):
            sink.sendall(chunk)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def serve(outer: socket.socket, host: str, port: int) -> None:
    with outer:
        try:
            inner = socket.create_connection((host, port), CONNECT_LIMIT_S)
        except OSError:
            return  # nobody at home: the caller sees its connection close
        with inner:
            inner.settimeout(None)
            for end in (inner, outer):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=pump, args=(inner, outer), daemon=True)
            back.start()
            pump(outer, inner)
            back.join()


def main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    host, port = sys.argv[2], int(sys.argv[3])
    while True:
        outer, _ = listener.accept()
        threading.Thread(target=serve, args=(outer, host, port), daemon=True).start()


if __name__ == "__main__":
    main()
