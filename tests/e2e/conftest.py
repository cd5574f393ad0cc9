from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Generator:
    """What a failed test left is looked at at once: the pods of its time are gone when the story has ended."""
    report = yield
    stage = getattr(item, "funcargs", {}).get("stage")
    if report.failed and stage is not None:
        stage.keep(item.name)
    return report


@pytest.fixture(autouse=True)
def bad_day(stage, request):
    """With FAULT_CLASSES, each test of a story is played under one of them (api_faults.py)."""
    if stage.faults is None:
        yield
        return
    with stage.faults.during(request.node.name, request.session.items.index(request.node)):
        yield
