"""The classes of faults that the tests go through, in the proxy's words."""

import dataclasses
import threading

WRITES = ["POST", "PUT", "PATCH", "DELETE"]
WAVE_S = 1.8  # a fault that lets nothing through is on for so long: a Lease of 5 s mostly survives it
PAUSE_S = 3  # and off for so long
CALM_S = 25  # a fault whose effect stays: once, as good as


@dataclasses.dataclass(frozen=True)
class FaultClass:
    faults: tuple
    steady: bool = True  # on all the time; else in waves
    on_s: float = WAVE_S
    off_s: float = PAUSE_S
    drop: bool = False  # each wave begins by closing every connection
    until_struck: bool = False  # a wave lasts until it has met somebody
    about: str = ""


def _class(about, *faults, **settings):
    return FaultClass(tuple(faults), about=about, **settings)


CLASSES = {
    "cut": _class(
        "streams end at any byte: in a head, in a chunk, in an object",
        {"kind": "cut", "share": 0.25, "watch": False, "at_most": 700},
        {"kind": "cut", "share": 0.4, "watch": True, "at_most": 8000},
        {"kind": "cut", "share": 0.2, "watch": True, "at_most": 8000, "farewell": True}),
    "delay": _class(
        "requests and answers take their time",
        {"kind": "delay", "seconds": 0.4, "share": 0.5},
        {"kind": "delay-answer", "seconds": 0.5, "share": 0.3}),
    "conflict": _class(
        "409 to writes", {"kind": "answer", "code": 409, "verbs": WRITES, "share": 0.4}),
    "expired": _class(
        "410 to lists and watches, and as an event of a watch",
        {"kind": "answer", "code": 410, "verbs": ["GET"], "share": 0.3},
        {"kind": "error-event", "code": 410, "watch": True, "share": 0.4}),
    "too-many": _class(
        "429 with Retry-After", {"kind": "answer", "code": 429, "retry_after": 1, "share": 0.3}),
    "error-before": _class("500, nothing done", {"kind": "answer", "code": 500, "share": 0.4}),
    "error-after": _class(
        "500 after the effect", {"kind": "answer-after", "code": 500, "verbs": WRITES, "share": 0.5}),
    "load-balancer": _class(
        "pages of something else that answers: 404, 400, 503",
        {"kind": "answer", "code": 404, "html": True, "share": 0.2},
        {"kind": "answer", "code": 400, "html": True, "share": 0.1},
        {"kind": "answer", "code": 503, "html": True, "share": 0.1}),
    "slow-watch": _class(
        "watches arrive byte by byte", {"kind": "slow", "watch": True, "bytes_per_second": 8000}),
    "unauthorized": _class("401 to everything", {"kind": "answer", "code": 401}, steady=False),
    "half-open": _class(
        "connections that are accepted and never answered; requests done and never answered",
        {"kind": "accept-mute"}, {"kind": "hang", "watch": True},
        {"kind": "hang-after", "verbs": WRITES, "share": 0.5}, {"kind": "hang"}, steady=False),
    "silent-watch": _class(
        "watches that are open are swallowed in silence", {"kind": "mute", "watch": True},
        steady=False, on_s=1, off_s=CALM_S, until_struck=True),
    "certificate": _class(
        "the server shows an expired certificate",
        {"kind": "certificate", "certificate": "expired"}, steady=False, drop=True),
    "wrong-ca": _class(
        "the server shows a stranger's certificate",
        {"kind": "certificate", "certificate": "wrong-ca"}, steady=False, drop=True),
    "refused": _class("connections are closed at once", {"kind": "refuse"}, steady=False, drop=True),
}


class Trouble:
    """Switches one class on some proxies until stop(): steady, or in waves."""

    def __init__(self, proxies, fault_class):
        self.proxies, self.fault_class = list(proxies), fault_class
        self.ending, self.error = threading.Event(), None
        self.set(True)
        self.thread = None
        if not fault_class.steady:
            self.thread = threading.Thread(target=self._waves, daemon=True)
            self.thread.start()

    def set(self, on):
        for proxy in self.proxies:
            if on:
                proxy.set(*self.fault_class.faults, drop=self.fault_class.drop)
            else:
                proxy.clear()

    def _has_struck(self):
        return any(fault["struck"] for proxy in self.proxies for fault in proxy.state()["faults"])

    def _waves(self):
        on = True
        try:
            while not self.ending.wait(self.fault_class.on_s if on else self.fault_class.off_s):
                if on and self.fault_class.until_struck and not self._has_struck():
                    continue
                on = not on
                self.set(on)
        except Exception as error:  # noqa: BLE001: raised again by stop()
            self.error = error

    def stop(self):
        self.ending.set()
        if self.thread:
            self.thread.join()
        self.set(False)
        if self.error:
            raise self.error

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.stop()
