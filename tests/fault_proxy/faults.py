"""What the fault proxy can do to a connection, a request or an answer, and when it does it.

A Fault says what (kind and parameters), to whom (verbs, path, watches or not), how often (share, count). Its
choices come from the seed, its number and how often it has matched: the same requests in the same order
meet the same fate. No I/O here.
"""

import dataclasses
import json
import random
import re

# Kinds of new connections; what is open stays as it is (see "drop" of the control socket).
CONNECTION_KINDS = {
    "refuse": "accepts and closes at once",
    "accept-mute": "accepts, and never says a byte: no TLS, no answer",
    "certificate": "shows another certificate: `certificate` is wrong-ca, expired or wrong-name",
}
# Kinds of requests.
REQUEST_KINDS = {
    "delay": "waits `seconds` before the request is passed on",
    "delay-answer": "passes the request on, and waits `seconds` before the answer",
    "answer": "answers `code` itself; the server never sees the request",
    "answer-after": "passes the request on, throws the answer away, and answers `code`",
    "error-event": "a watch: answers 200 and one ERROR event with a Status of `code`",
    "hang": "takes the request, passes nothing on, and is silent for ever",
    "hang-after": "passes the request on, throws the answer away, and is silent for ever",
}
# Kinds of answers, watches that are open already among them.
ANSWER_KINDS = {
    "cut": "closes after `at` bytes of the answer, or after a seeded number below `at_most`",
    "slow": "one byte at a time, `bytes_per_second`",
    "mute": "swallows everything from now on and keeps the connection open",
}
KINDS = {**CONNECTION_KINDS, **REQUEST_KINDS, **ANSWER_KINDS}

REASONS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict",
           410: "Expired", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable",
           504: "Timeout"}


class FaultError(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class Fault:
    kind: str
    verbs: tuple = ()  # empty: all
    path: str = ""  # a regular expression, searched in path and query
    watch: bool | None = None  # only watches, or only others
    share: float = 1.0  # of the matches
    count: int | None = None  # after so many it is spent
    at: int | None = None
    at_most: int = 2000
    farewell: bool = False  # "cut": with an orderly end of TLS, as a proxy that shuts down
    seconds: float = 1.0
    code: int = 500
    retry_after: int | None = None
    html: bool = False  # the body is a page, as of a load balancer, not a Status
    bytes_per_second: int = 4000
    certificate: str = "wrong-ca"

    @staticmethod
    def from_json(value):
        known = {field.name for field in dataclasses.fields(Fault)}
        if unknown := set(value) - known:
            raise FaultError(f"unknown: {', '.join(sorted(unknown))}")
        if value.get("kind") not in KINDS:
            raise FaultError(f"kind {value.get('kind')!r} is none of {', '.join(KINDS)}")
        return Fault(**{**value, "verbs": tuple(value.get("verbs", ()))})

    def to_json(self):
        default = Fault(self.kind)
        return {"kind": self.kind, **{field.name: getattr(self, field.name)
                                      for field in dataclasses.fields(self)
                                      if getattr(self, field.name) != getattr(default, field.name)}}

    def matches(self, verb, path):
        is_watch = "watch=1" in path or "watch=true" in path
        return ((not self.verbs or verb in self.verbs)
                and (self.watch is None or self.watch == is_watch)
                and (not self.path or re.search(self.path, path) is not None))


class Armed:
    """A fault that is switched on, with what it has done so far."""

    def __init__(self, fault, seed, number):
        self.fault, self.seed, self.number = fault, seed, number
        self.matched = self.done = 0

    def strikes(self):
        """Whether it is done this time; and the random numbers that belong to this time, or None."""
        self.matched += 1
        rng = random.Random(f"{self.seed}:{self.number}:{self.matched}")
        spent = self.fault.count is not None and self.done >= self.fault.count
        if spent or rng.random() >= self.fault.share:
            return None
        self.done += 1
        return rng


class Arsenal:
    """All faults that are on. Not thread-safe."""

    def __init__(self, seed):
        self.seed, self.version, self.armed, self.made = seed, 0, [], 0
        self.totals = {}

    def set(self, faults):
        self.version += 1
        self.armed = []
        for fault in faults:
            self.made += 1
            self.armed.append(Armed(fault, self.seed, self.made))

    def strike(self, kinds, verb="", path=""):
        """[(fault, rng)] of those kinds that strike now."""
        found = []
        for armed in self.armed:
            if armed.fault.kind in kinds and armed.fault.matches(verb, path):
                if (rng := armed.strikes()) is not None:
                    self.totals[armed.fault.kind] = self.totals.get(armed.fault.kind, 0) + 1
                    found.append((armed.fault, rng))
        return found


def plan(seed, classes, windows, length_s):
    """A seeded order of faults: [(second at which it begins, name of the class)], `windows` of them, each
    `length_s` long with as long a pause behind it."""
    rng = random.Random(f"plan:{seed}")
    names, order = sorted(classes), []
    while len(order) < windows:
        order += rng.sample(names, len(names))
    return [(2 * length_s * number, name) for number, name in enumerate(order[:windows])]


def status_body(code, message="the fault proxy answers this", html=False):
    if html:
        return b"<html><body><h1>%d</h1>a page of a load balancer</body></html>" % code
    reason = REASONS.get(code, "InternalError")
    return json.dumps({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                       "message": message, "reason": reason, "code": code}).encode()
