"""The log endpoint of a kubelet, for tests: HTTPS on loopback, fixed lines, a stream that ends, or, when
followed with `tailLines=1`, one that stays silent until its reader leaves."""

import http.server
import ssl
import threading
import urllib.parse


class FakeKubelet:
    """`lines` are sent for any container but "broken", which is refused. `asked` keeps the requests."""

    def __init__(self, certificate, key, lines):
        outer = self
        self.asked = []
        self.left = threading.Event()  # the reader of a silent stream has gone

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                url = urllib.parse.urlsplit(self.path)
                outer.asked.append((url.path, urllib.parse.parse_qs(url.query)))
                broken = url.path.endswith("/broken")
                self.send_response(400 if broken else 200)
                self.send_header("Content-Type", "text/plain")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for line in ["container is waiting to start"] if broken else lines:
                    data = (line + "\n").encode()
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                    self.wfile.flush()
                if "tailLines=1&" in url.query + "&":
                    self.rfile.read(1)  # until the other side closes
                    outer.left.set()
                    self.close_connection = True
                    return
                self.wfile.write(b"0\r\n\r\n")

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(str(certificate), str(key))
        self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
