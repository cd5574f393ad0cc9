"""fault_proxy: stands between a client and a Kubernetes API server, and does what a bad day does.

    fault_proxy.py --upstream https://127.0.0.1:6443 --authority ca.crt --client admin.crt admin.key \\
        --server wrong-ca other.crt other.key --server right server.crt server.key \\
        --control proxy.socket --log proxy.log --seed 7

TLS ends here. A request with an Authorization header goes on with it; one without is sent under the proxy's own
client certificate. Prints `listening PORT`. The control socket takes one JSON object a line and answers with one:

    {"faults": [{"kind": "delay", "seconds": 0.5, "share": 0.3}]}   these, and no others
    {"faults": [], "drop": true}                                     none; and every open connection is closed
    {}                                                               how it stands

The log has one JSON object a line: every request, and everything that was done to it.
"""

import argparse
import asyncio
import contextlib
import json
import ssl
import sys
import time
import urllib.parse

from faults import ANSWER_KINDS, CONNECTION_KINDS, REQUEST_KINDS, Arsenal, Fault, FaultError, status_body
from http1 import HttpError, Input

UPSTREAM_LIMIT_S = 20  # for a connection to the API server
SLOW_STEP_S = 0.01  # "slow" writes so many bytes, one TLS record each, and rests for so long


class Gone(Exception):
    """This connection is over: by a fault, or because a side has left."""


class Log:
    def __init__(self, path):
        self.file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115: as long as the process
        self.began = time.monotonic()

    def __call__(self, what, **facts):
        line = {"t": round(time.monotonic() - self.began, 4),
                "at": time.strftime("%H:%M:%S", time.gmtime()), "what": what, **facts}
        self.file.write(json.dumps(line) + "\n")


class Proxy:
    def __init__(self, options):
        self.options, self.log = options, Log(options.log)
        self.arsenal = Arsenal(options.seed)
        url = urllib.parse.urlsplit(options.upstream)
        self.upstream = (url.hostname, url.port or 443)
        self.certificates = {name: self._server_context(c, k) for name, c, k in options.server}
        self.with_certificate = self._client_context(options.client)
        self.bare = self._client_context(None)
        self.connections, self.count, self.requests = set(), 0, 0

    @staticmethod
    def _server_context(certificate, key):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        context.set_alpn_protocols(["http/1.1"])
        return context

    def _client_context(self, pair):
        context = ssl.create_default_context(cafile=self.options.authority)
        context.set_alpn_protocols(["http/1.1"])
        if pair:
            context.load_cert_chain(*pair)
        return context

    async def run(self):
        server = await asyncio.start_server(self._accept, self.options.address, self.options.port, backlog=64)
        control = await asyncio.start_unix_server(self._control, self.options.control)
        print(f"listening {server.sockets[0].getsockname()[1]}", flush=True)
        self.log("start", seed=self.options.seed, upstream=self.options.upstream)
        async with server, control:
            await asyncio.Event().wait()

    # ---- control ----

    async def _control(self, reader, writer):
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                try:
                    answer = self._obey(json.loads(line))
                except (FaultError, ValueError, TypeError) as error:
                    answer = {"error": str(error)}
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        writer.close()

    def _obey(self, order):
        if "faults" in order:
            faults = [Fault.from_json(value) for value in order["faults"]]
            for fault in faults:
                if fault.kind == "certificate" and fault.certificate not in self.certificates:
                    raise FaultError(f"no certificate {fault.certificate!r}")
            self.arsenal.set(faults)
            self.log("faults", faults=[fault.to_json() for fault in faults])
        if order.get("drop"):
            self.log("drop", connections=len(self.connections))
            for connection in list(self.connections):
                connection.abort()
        return {"seed": self.options.seed, "connections": len(self.connections), "requests": self.requests,
                "done": self.arsenal.totals,
                "faults": [{**armed.fault.to_json(), "matched": armed.matched, "struck": armed.done}
                           for armed in self.arsenal.armed]}

    # ---- connections ----

    async def _accept(self, reader, writer):
        self.count += 1
        connection = Connection(self, self.count, reader, writer)
        self.connections.add(connection)
        try:
            await connection.run()
        except (Gone, HttpError, ConnectionError, ssl.SSLError, asyncio.TimeoutError, OSError) as error:
            self.log("end", connection=connection.number, why=str(error) or type(error).__name__)
        finally:
            connection.abort()
            self.connections.discard(connection)


class Connection:
    """One client's connection, and the one to the API server that belongs to it."""

    def __init__(self, proxy, number, reader, writer):
        self.proxy, self.log, self.number = proxy, proxy.log, number
        self.client, self.writer = Input(reader), writer
        self.server = self.server_writer = self.server_context = None

    def abort(self):
        for writer in (self.writer, self.server_writer):
            # A connection that ended in its TLS handshake has no transport any more.
            if writer is not None and writer.transport is not None:
                writer.transport.abort()

    async def run(self):
        certificate = "right"
        for fault, _ in self.proxy.arsenal.strike(CONNECTION_KINDS):
            self.log("fault", connection=self.number, kind=fault.kind)
            if fault.kind == "refuse":
                return
            if fault.kind == "accept-mute":
                await self.client.closed()
                raise Gone("accepted, and never answered")
            certificate = fault.certificate
        try:
            await self.writer.start_tls(self.proxy.certificates[certificate], ssl_handshake_timeout=60)
        except AttributeError:  # how asyncio says that the connection was closed meanwhile
            raise Gone("closed in the handshake") from None
        while (head := await self.client.head()) is not None:
            self.proxy.requests += 1
            await Request(self, head).serve()
            if (head.get("Connection") or "").lower() == "close":
                return

    async def ask(self, head, body):
        """Sends a request on; returns the head of the answer."""
        context = self.proxy.bare if head.get("Authorization") else self.proxy.with_certificate
        for attempt in (1, 2):
            is_fresh = self.server is None or self.server_context is not context
            if is_fresh:
                self.drop_server()
                reader, self.server_writer = await asyncio.wait_for(
                    asyncio.open_connection(*self.proxy.upstream, ssl=context), UPSTREAM_LIMIT_S)
                self.server, self.server_context = Input(reader), context
            try:
                self.server_writer.write(head.bytes() + body)
                await self.server_writer.drain()
                if (answer := await self.server.head()) is not None:
                    return answer
            except ConnectionError:
                pass
            self.drop_server()  # a kept connection that the server has closed meanwhile
            if is_fresh or attempt == 2:
                raise Gone("the API server closed the connection")
        raise AssertionError

    def drop_server(self):
        if self.server_writer is not None:
            self.server_writer.transport.abort()
        self.server = self.server_writer = None


class Request:
    def __init__(self, connection, head):
        self.connection, self.proxy, self.log, self.head = connection, connection.proxy, connection.log, head
        self.verb, self.path, _ = head.first.split(" ", 2)
        self.facts = {"connection": connection.number, "verb": self.verb, "path": self.path}

    async def serve(self):
        body = await self.connection.client.body(self.head, is_answer=False)
        if self.head.is_chunked:  # the body keeps its framing
            self.head.drop("Content-Length")
        answer_delay = 0.0
        for fault, _ in self.proxy.arsenal.strike(REQUEST_KINDS, self.verb, self.path):
            self.log("fault", kind=fault.kind, code=fault.code, **self.facts)
            if fault.kind == "delay":
                await self._while_client(asyncio.sleep(fault.seconds))
            elif fault.kind == "delay-answer":
                answer_delay += fault.seconds
            else:
                return await self._instead(fault, body)
        await self._while_client(self._pass_on(body, answer_delay))

    async def _while_client(self, work):
        """Ends `work` when the client leaves. (A pipelined request would be kept.)"""
        task = asyncio.ensure_future(work)
        closed = asyncio.ensure_future(self.connection.client.closed())
        try:
            await asyncio.wait({task, closed}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Gone("the client left")
            return await task
        finally:
            for other in (task, closed):
                other.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await other

    async def _instead(self, fault, body):
        """An answer that is not the server's, or none."""
        if fault.kind in ("answer-after", "hang-after"):
            answer = await self.connection.ask(self.head, body)
            if "watch=" in self.path:
                self.connection.drop_server()
            else:
                await self.connection.server.body(answer, is_answer=True)
            self.log("thrown away", status=answer.first, **self.facts)
        if fault.kind in ("hang", "hang-after"):
            await self.connection.client.closed()
            raise Gone("never answered")
        status = status_body(fault.code, html=fault.html)
        if fault.kind == "error-event":
            event = b'{"type":"ERROR","object":' + status + b"}\n"
            data = (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
                    b"%x\r\n%s\r\n0\r\n\r\n" % (len(event), event))
        else:
            kind = "text/html" if fault.html else "application/json"
            again = "" if fault.retry_after is None else f"Retry-After: {fault.retry_after}\r\n"
            data = (f"HTTP/1.1 {fault.code} Fault\r\nContent-Type: {kind}\r\n{again}"
                    f"Content-Length: {len(status)}\r\n\r\n").encode() + status
        self.connection.writer.write(data)
        await self.connection.writer.drain()

    async def _pass_on(self, body, answer_delay):
        began = time.monotonic()
        answer = await self.connection.ask(self.head, body)
        if answer_delay:
            await asyncio.sleep(answer_delay)
        code = answer.first.split(" ")[1]
        out = Answer(self)
        self.log("request", code=code, **self.facts)
        await out.send(answer.bytes())
        if self.verb != "HEAD" and code not in ("204", "304"):
            async for piece in self.connection.server.body_pieces(answer, is_answer=True):
                await out.send(piece)
        if not answer.is_chunked and answer.length is None and self.verb != "HEAD":
            raise Gone("the answer ended with the connection")
        if "watch=" in self.path:
            self.log("watch ended", seconds=round(time.monotonic() - began, 2), **self.facts)


class Answer:
    """The way of an answer to the client, and what may happen to it on the way."""

    def __init__(self, request):
        self.request, self.log = request, request.log
        self.arsenal = request.proxy.arsenal
        self.writer = request.connection.writer
        self.version, self.sent = -1, 0
        self.cut = self.slow = None
        self.is_mute = False

    def _look(self):
        """Faults may be switched on while a watch is open: asked once for each change of them."""
        if self.version == self.arsenal.version:
            return
        self.version = self.arsenal.version
        self.cut = self.slow = None
        for fault, rng in self.arsenal.strike(ANSWER_KINDS, self.request.verb, self.request.path):
            if fault.kind == "cut":
                after = fault.at if fault.at is not None else rng.randrange(fault.at_most)
                self.cut = (self.sent + after, fault)
            elif fault.kind == "slow":
                self.slow = fault
                self.log("fault", kind="slow", **self.request.facts)
            elif not self.is_mute:
                self.is_mute = True  # for ever: what was swallowed cannot be given later
                self.log("fault", kind="mute", sent=self.sent, **self.request.facts)

    async def send(self, data):
        self._look()
        if self.is_mute:
            return
        if self.cut and self.sent + len(data) > self.cut[0]:
            await self._write(data[:self.cut[0] - self.sent])
            self.log("fault", kind="cut", sent=self.sent, **self.request.facts)
            if self.cut[1].farewell:
                self.writer.close()
                with contextlib.suppress(ConnectionError, ssl.SSLError):
                    await self.writer.wait_closed()
            raise Gone("cut")
        await self._write(data)

    async def _write(self, data):
        if self.slow is None:
            self.writer.write(data)
            await self.writer.drain()
        else:
            pace = max(1, round(self.slow.bytes_per_second * SLOW_STEP_S))
            for number, byte in enumerate(data, 1):
                self.writer.write(bytes([byte]))
                if number % pace == 0:
                    await self.writer.drain()
                    await asyncio.sleep(SLOW_STEP_S)
            await self.writer.drain()
        self.sent += len(data)


def main():
    parser = argparse.ArgumentParser(description="A proxy of a Kubernetes API server that does what a bad day does.")
    parser.add_argument("--upstream", required=True, metavar="URL")
    parser.add_argument("--address", default="127.0.0.1", help="to listen on (default: loopback)")
    parser.add_argument("--port", type=int, default=0, help="(default: any)")
    parser.add_argument("--authority", required=True, help="who signed the API server's certificate")
    parser.add_argument("--client", nargs=2, metavar=("CERT", "KEY"), help="shown to the API server")
    parser.add_argument("--server", nargs=3, action="append", required=True, metavar=("NAME", "CERT", "KEY"),
                        help="a certificate to show; the one named right is usual")
    parser.add_argument("--control", required=True, metavar="SOCKET")
    parser.add_argument("--log", required=True, metavar="FILE")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Proxy(options).run())


if __name__ == "__main__":
    sys.exit(main())
