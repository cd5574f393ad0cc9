"""As much of HTTP/1.1 as a proxy needs: heads, and bodies in the framing they came in."""

HEAD_MAX = 64 * 1024
PIECE = 64 * 1024


class HttpError(Exception):
    pass


class Head:
    """First line and headers, as bytes that are passed on unchanged but for what set() changes."""

    def __init__(self, raw):
        lines = raw.rstrip(b"\r\n").split(b"\r\n")
        self.first = lines[0].decode("latin-1")
        self.headers = []
        for line in lines[1:]:
            name, colon, value = line.decode("latin-1").partition(":")
            if not colon:
                raise HttpError(f"not a header: {line[:80]!r}")
            self.headers.append((name.strip(), value.strip()))

    def get(self, name):
        return next((v for n, v in self.headers if n.lower() == name.lower()), None)

    def drop(self, *names):
        unwanted = {name.lower() for name in names}
        self.headers = [(n, v) for n, v in self.headers if n.lower() not in unwanted]

    def bytes(self):
        lines = [self.first, *(f"{n}: {v}" for n, v in self.headers)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    @property
    def is_chunked(self):
        return "chunked" in (self.get("Transfer-Encoding") or "").lower()

    @property
    def length(self):
        found = self.get("Content-Length")
        return None if found is None else int(found)


class Input:
    """Reads messages from an asyncio stream. A byte that was read to see whether the other side still
    lives is given back."""

    def __init__(self, reader):
        self.reader, self.kept = reader, b""

    async def head(self):
        """None at an end between two messages."""
        data = self.kept
        self.kept = b""
        while b"\r\n\r\n" not in data:
            piece = await self.reader.read(PIECE)
            if not piece:
                if data.strip():
                    raise HttpError("ended in a head")
                return None
            data += piece
            if len(data) > HEAD_MAX and b"\r\n\r\n" not in data:
                raise HttpError("a head that is too long")
        head, _, self.kept = data.partition(b"\r\n\r\n")
        return Head(head)

    async def _line(self):
        while b"\n" not in self.kept:
            await self._more()
        line, _, self.kept = self.kept.partition(b"\n")
        return line + b"\n"

    async def _exactly(self, count):
        while len(self.kept) < count:
            await self._more()
        data, self.kept = self.kept[:count], self.kept[count:]
        return data

    async def _more(self):
        piece = await self.reader.read(PIECE)
        if not piece:
            raise HttpError("ended in a body")
        self.kept += piece

    async def body_pieces(self, head, is_answer):
        """The body as it comes, framing included: one chunk, or one read, at a time."""
        if head.is_chunked:
            while True:
                size_line = await self._line()
                size = int(size_line.split(b";")[0], 16)
                if size == 0:
                    trailer = await self._line()
                    while trailer.strip():
                        trailer = await self._line()
                    yield b"0\r\n\r\n"
                    return
                yield size_line + await self._exactly(size + 2)
        elif head.length is not None:
            left = head.length
            while left > 0:
                if not self.kept:
                    await self._more()
                piece, self.kept = self.kept[:left], self.kept[left:]
                left -= len(piece)
                yield piece
        elif is_answer:  # until the server closes
            while True:
                if self.kept:
                    yield self.kept
                    self.kept = b""
                piece = await self.reader.read(PIECE)
                if not piece:
                    return
                yield piece

    async def body(self, head, is_answer):
        return b"".join([piece async for piece in self.body_pieces(head, is_answer)])

    async def closed(self):
        """Returns when the other side has closed; what it sent meanwhile is kept."""
        while True:
            piece = await self.reader.read(PIECE)
            if not piece:
                return
            self.kept += piece
