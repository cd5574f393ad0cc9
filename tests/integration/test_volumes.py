"""Volumes on a real API server, with Kubernetes' own volume controller: claims that are missing, made on demand, refused
for a node, made by hand, or made for each pod."""

from cluster_fixtures import CHANGE_S, cluster, plane_and_cluster  # noqa: F401
from control_plane import wait_until
from storage import BY_HAND, Storage, StoringJob

LONG = 100000  # steps


def bound_nodes(job):
    return {pod["spec"]["nodeName"] for pod in job.living_pods().values() if "nodeName" in pod["spec"]}


def event_reasons(job):
    return {event["reason"] for event in job.events()}


def test_a_claim_is_waited_for_then_made_where_its_provisioner_can(cluster):
    storage = Storage(cluster.plane)
    cluster.add_nodes(2)
    job = cluster.apply(StoringJob("on-demand", claims=["zonal"], steps=LONG, gpus=(1, 2)))
    job.wait_condition("Queued", reason="ClaimNotFound", limit_s=CHANGE_S)
    assert 'the PersistentVolumeClaim "zonal" does not exist' in job.message("Queued")
    storage.make_claim("zonal", "zonal")
    job.wait_condition("Queued", reason="StorageClassNotFound", limit_s=CHANGE_S)
    assert "kubectl get sc" in job.message("Queued")
    assert not job.pods() and "allocation" not in job.status()
    storage.make_class("zonal")
    wait_until(lambda: storage.selected("zonal"), CHANGE_S, "a node for the volume")
    first = storage.selected("zonal")
    assert not bound_nodes(job), "a pod was bound before its claim"
    storage.refuse("zonal")
    wait_until(lambda: storage.selected("zonal") not in (None, first), CHANGE_S, "another node")
    second = storage.selected("zonal")
    job.wait(lambda o: any(a["node"] == first and a["reason"] == "VolumeRefused"
                           for a in o["status"].get("avoidedNodes", [])), CHANGE_S, "the refusal to be written down")
    assert not bound_nodes(job)
    storage.make_volume("zonal-volume", "zonal", [second], claim="zonal")
    job.wait_step(3)
    assert bound_nodes(job) == {second}
    wait_until(lambda: {"ClaimNotFound", "VolumeNodeSelected", "VolumeRefused"} <= event_reasons(job), CHANGE_S,
               "its events")


def test_a_volume_that_was_made_by_hand_is_kept_for_the_claim_on_its_node(cluster):
    storage = Storage(cluster.plane)
    _, second = cluster.add_nodes(2)
    storage.make_class("by-hand", BY_HAND)
    storage.make_claim("local", "by-hand", "ReadWriteOnce")
    job = cluster.apply(StoringJob("by-hand", claims=["local"], steps=LONG, gpus=(1, 2)))
    job.wait_condition("Queued", reason="ClaimNotBound", limit_s=CHANGE_S)
    assert "make one by hand" in job.message("Queued")
    storage.make_volume("local-volume", "by-hand", [second.name], "ReadWriteOnce")
    wait_until(lambda: storage.is_bound("local"), CHANGE_S, "the claim to be bound")
    job.wait_step(3)
    assert bound_nodes(job) == {second.name}


def test_claims_that_come_with_their_pods_are_made_for_their_nodes(cluster):
    storage = Storage(cluster.plane)
    cluster.add_nodes(2)
    storage.make_class("zonal")
    job = cluster.apply(StoringJob("scratching", ephemeral="zonal", steps=LONG, gpus=(2, 2)))
    wait_until(lambda: len(job.living_pods()) == 2, CHANGE_S, "its pods")
    for name in sorted(job.living_pods()):
        claim = f"{name}-scratch"
        wait_until(lambda: storage.selected(claim), CHANGE_S, f"a node for {claim}")
        storage.make_volume(f"volume-{name}", "zonal", [storage.selected(claim)], "ReadWriteOnce", claim)
    job.wait_members(2, CHANGE_S)
    assert len(bound_nodes(job)) == 2
