import pytest


@pytest.fixture(autouse=True)
def bad_day(stage, request):
    """With FAULT_CLASSES, each test of a story is played under one of them (api_faults.py)."""
    if stage.faults is None:
        yield
        return
    with stage.faults.during(request.node.name, request.session.items.index(request.node)):
        yield
