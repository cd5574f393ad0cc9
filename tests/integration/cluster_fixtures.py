"""A cluster of two operators on a real API server, one for all tests of a file; each test brings its nodes and jobs."""

import os

import pytest
from cluster import Cluster
from control_plane import ControlPlane

CHANGE_S = 120


@pytest.fixture(scope="module")
def plane_and_cluster():
    with ControlPlane(controller_manager=True) as plane:
        cluster = Cluster(plane, os.environ["RUBATO_BUILD"])
        with cluster:
            yield cluster
        cluster.check_nothing_left()


@pytest.fixture
def cluster(plane_and_cluster, request):
    """The cluster without nodes; what a test adds goes when it ends."""
    found, failed = plane_and_cluster, request.session.testsfailed
    yield found
    if request.session.testsfailed > failed:
        found.plane.keep = True
        print(f"logs are kept in {found.folder}\n{found.explain()}")
    for operator in found.operators.values():
        if operator.is_running():
            operator.resume()
        else:
            operator.start()
    for node in found.nodes.values():
        if node.is_frozen:
            node.thaw()
    found.clear(CHANGE_S)
    found.check()
