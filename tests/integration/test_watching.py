"""The judges of the elastic stories, judged."""

import pytest
from watching import Event, SlotRule, condition_story


def pod(name, node, phase="Running", slots=1):
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "status": {"phase": phase},
            "spec": {"nodeName": node, "containers": [{"resources": {"requests": {"slot": str(slots)}}}]}}


def rule():
    found = SlotRule("slot")
    found.add_node("n1", 2)
    return found


def test_a_slot_given_twice_is_found():
    judge = rule()
    judge(Event(0, "ADDED", pod("a", "n1")))
    judge(Event(0, "ADDED", pod("b", "n1")))
    with pytest.raises(AssertionError, match="3 slots"):
        judge(Event(0, "ADDED", pod("c", "n1")))


def test_a_slot_is_free_when_its_pod_has_ended_or_is_gone():
    judge = rule()
    judge(Event(0, "ADDED", pod("a", "n1", slots=2)))
    judge(Event(0, "MODIFIED", pod("a", "n1", "Succeeded", slots=2)))
    judge(Event(0, "ADDED", pod("b", "n1", slots=2)))
    judge(Event(0, "DELETED", pod("b", "n1", slots=2)))
    judge(Event(0, "ADDED", pod("c", "n1", slots=2)))
    assert judge.most["n1"] == 2


def test_a_terminating_pod_still_holds_its_slot():
    judge = rule()
    leaving = pod("a", "n1", slots=2)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    judge(Event(0, "MODIFIED", leaving))
    with pytest.raises(AssertionError):
        judge(Event(0, "ADDED", pod("b", "n1")))


def test_the_story_of_conditions():
    def job(**conditions):
        return {"status": {"conditions": [{"type": kind, "status": status, "reason": "R"}
                                          for kind, status in conditions.items()]}}
    events = [Event(0, "MODIFIED", job(Queued="True")),
              Event(0, "MODIFIED", job(Queued="True")),
              Event(0, "MODIFIED", job(Queued="False", Running="True"))]
    assert condition_story(events) == [("Queued", "True", "R"), ("Queued", "False", "R"),
                                       ("Running", "True", "R")]
