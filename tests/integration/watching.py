"""Watches of a test: every state that an object went through, in the order the API server gave it out."""

import collections
import http.client
import json
import ssl
import threading
import time

from control_plane import ControlPlaneError

READ_LIMIT_S = 2  # a quiet watch looks this often whether it should end
LIST_LIMIT_S = 120
PASSING = (429, 500, 503, 504)  # a server that is starting, or has lost its etcd
KEPT_MAX = 20000  # events of one watch; a test that makes more is a defect

Event = collections.namedtuple("Event", "time kind object")  # wall seconds; ADDED, MODIFIED, DELETED


class Watch:
    """Lists and then watches one resource, on a thread. `on_event` is called for each event in order; what
    it raises is kept and raised again by check(). Events of objects that were there before are ADDED."""

    def __init__(self, plane, path, on_event=None):
        self.plane, self.path, self.on_event = plane, path, on_event
        self.events, self.latest, self.error = [], {}, None
        self.changed = threading.Condition()
        self.ending = threading.Event()
        self.version = self._list()  # of the last event: a broken watch goes on from there, and repeats nothing
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def stop(self):
        self.ending.set()
        self.thread.join(READ_LIMIT_S + 5)

    def check(self):
        if self.error is not None:
            raise self.error

    def get(self, name, namespace="default"):
        """The newest state of an object; None when it is not there."""
        with self.changed:
            return self.latest.get((namespace, name))

    def history(self, name, namespace="default"):
        with self.changed:
            return [event for event in self.events
                    if _key(event.object) == (namespace, name)]

    def wait(self, condition, limit_s, what):
        """Waits until condition(latest) is true, where latest maps (namespace, name) to objects; returns
        what it returned."""
        deadline = time.monotonic() + limit_s
        with self.changed:
            while True:
                self.check()
                if found := condition(self.latest):
                    return found
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ControlPlaneError(f"{what}: not within {limit_s} s")
                self.changed.wait(left)

    # ---- inside ----

    def _connect(self):
        context = ssl.create_default_context(cafile=str(self.plane.client_ca))
        context.load_cert_chain(*map(str, self.plane.admin))
        host, port = self.plane.url.removeprefix("https://").split(":")
        return http.client.HTTPSConnection(host, int(port), context=context, timeout=30)

    def _list(self):
        deadline = time.monotonic() + LIST_LIMIT_S
        while True:
            connection = self._connect()
            connection.request("GET", self.path)
            answer = connection.getresponse()
            found = json.loads(answer.read())
            connection.close()
            if answer.status == 200:
                break
            if answer.status not in PASSING or time.monotonic() > deadline:
                raise ControlPlaneError(f"listing {self.path}: {found}")
            self.ending.wait(0.2)  # the storage of a new CRD is still being made
        present = {_key(item): item for item in found["items"]}
        for key, item in list(self.latest.items()):  # deleted while nobody looked
            if key not in present or present[key]["metadata"]["uid"] != item["metadata"]["uid"]:
                self._take("DELETED", item)
        for item in found["items"]:
            if self.latest.get(_key(item)) != item:
                self._take("ADDED", item)
        return found["metadata"]["resourceVersion"]

    def _run(self):
        while not self.ending.is_set():
            try:
                connection = self._connect()
                separator = "&" if "?" in self.path else "?"
                connection.request("GET", f"{self.path}{separator}watch=true&allowWatchBookmarks=true"
                                          f"&resourceVersion={self.version}")
                answer = connection.getresponse()
                if answer.status == 410:
                    self.version = self._list()
                elif answer.status in PASSING:
                    self.ending.wait(0.2)
                else:
                    self._read(answer)
            except (OSError, http.client.HTTPException):
                self.ending.wait(0.2)  # the server is away: again from where we were
            except Exception as error:  # of on_event
                with self.changed:
                    self.error = error
                    self.changed.notify_all()
                return
            finally:
                connection.close()

    def _read(self, answer):
        # The socket has a limit for connecting and for headers; a watch may be quiet for longer, and
        # http.client cannot go on after a time-out, so the end of the test is seen by the bookmarks.
        while not self.ending.is_set():
            line = answer.readline()
            if not line:
                return
            event = json.loads(line)
            if event["type"] == "ERROR":
                if event["object"].get("code") == 410:  # quiet for longer than the server remembers
                    self.version = self._list()
                    return
                if event["object"].get("code") in PASSING:
                    return
                raise ControlPlaneError(f"watch of {self.path}: {event['object']}")
            if event["type"] != "BOOKMARK":
                self._take(event["type"], event["object"])
            self.version = event["object"]["metadata"]["resourceVersion"]

    def _take(self, kind, item):
        event = Event(time.time(), kind, item)
        with self.changed:
            if kind == "DELETED":
                self.latest.pop(_key(item), None)
            else:
                self.latest[_key(item)] = item
            self.events.append(event)
            if len(self.events) > KEPT_MAX:
                raise ControlPlaneError(f"more than {KEPT_MAX} events of {self.path}")
            if self.on_event:
                self.on_event(event)
            self.changed.notify_all()


def _key(item):
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


class SlotRule:
    """No slot is given twice: after every event of a pod, the pods bound to a node that have not ended ask
    for no more than the node has. Use as on_event of a Watch of all pods."""

    def __init__(self, resource):
        self.resource, self.capacity, self.pods = resource, {}, {}
        self.most = collections.Counter()

    def add_node(self, name, slots):
        self.capacity[name] = slots

    def __call__(self, event):
        pod = event.object
        uid = pod["metadata"]["uid"]
        ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if event.kind == "DELETED" or ended or not pod["spec"].get("nodeName"):
            self.pods.pop(uid, None)
            return
        slots = sum(int(c.get("resources", {}).get("requests", {}).get(self.resource, 0))
                    for c in pod["spec"]["containers"])
        self.pods[uid] = (pod["spec"]["nodeName"], slots, pod["metadata"]["name"])
        node = pod["spec"]["nodeName"]
        holders = [(name, n) for where, n, name in self.pods.values() if where == node]
        taken = sum(n for _, n in holders)
        self.most[node] = max(self.most[node], taken)
        assert taken <= self.capacity.get(node, 0), f"node {node}: {taken} slots are given: {holders}"


def conditions_of(job):
    """{type: condition} of an object."""
    return {c["type"]: c for c in (job or {}).get("status", {}).get("conditions") or []}


def condition_story(events):
    """The changes of conditions that a watch saw: [(type, status, reason) …], in order."""
    story, before = [], {}
    for event in events:
        for kind, condition in conditions_of(event.object).items():
            now = (condition["status"], condition["reason"])
            if before.get(kind) != now:
                before[kind] = now
                story.append((kind, *now))
    return story
