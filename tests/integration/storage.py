"""Jobs that mount claims of storage classes, and what makes their volumes: a provisioner that the test plays by hand.
Kubernetes' volume controller binds what is kept for each other."""

import json

from jobs import Job

SELECTED = "volume.kubernetes.io/selected-node"
BY_HAND = "kubernetes.io/no-provisioner"


class StoringJob(Job):
    """Mounts a claim for each of `claims`, which the test makes, and a volume of `ephemeral`, a class, if any."""

    def __init__(self, name, claims=(), ephemeral=None, more=None, **kwargs):
        super().__init__(name, **kwargs)
        self.stores, self.ephemeral, self.more = claims, ephemeral, more or {}

    def manifest(self):
        manifest = super().manifest()
        manifest["spec"].update(self.more)
        pod = manifest["spec"]["template"]["spec"]
        for claim in self.stores:
            pod["volumes"].append({"name": claim, "persistentVolumeClaim": {"claimName": claim}})
        if self.ephemeral:
            template = {"spec": claim_spec(self.ephemeral, "ReadWriteOnce")}
            pod["volumes"].append({"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}})
        return manifest

    def message(self, kind):
        return next(c["message"] for c in self.status()["conditions"] if c["type"] == kind)


def claim_spec(storage_class, mode):
    return {"accessModes": [mode], "storageClassName": storage_class, "resources": {"requests": {"storage": "1Gi"}}}


class Storage:
    def __init__(self, plane):
        self.plane = plane

    def _apply(self, manifest):
        self.plane.kubectl("apply", "-f", "-", input=json.dumps(manifest))

    def make_class(self, name, provisioner="disk.example", binding="WaitForFirstConsumer"):
        self._apply({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
                     "provisioner": provisioner, "volumeBindingMode": binding})

    def make_claim(self, name, storage_class, mode="ReadWriteMany"):
        self._apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                     "metadata": {"name": name, "namespace": "default"}, "spec": claim_spec(storage_class, mode)})

    def make_volume(self, name, storage_class, nodes, mode="ReadWriteMany", claim=None):
        """That the nodes reach; kept for a claim, as a provisioner keeps what it made."""
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in nodes]
        spec = {"capacity": {"storage": "2Gi"}, "accessModes": [mode], "storageClassName": storage_class,
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/nowhere"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}
        if claim:
            spec["claimRef"] = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default",
                                "name": claim, "uid": self.claim(claim)["metadata"]["uid"]}
        self._apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec})

    def claim(self, name):
        found = self.plane.kubectl("get", "pvc", name, "-n", "default", "-o", "json", check=False)
        return json.loads(found.stdout) if found.returncode == 0 else {}

    def selected(self, claim):
        return self.claim(claim).get("metadata", {}).get("annotations", {}).get(SELECTED)

    def is_bound(self, claim):
        return self.claim(claim).get("status", {}).get("phase") == "Bound"

    def refuse(self, claim):
        """What a provisioner does that cannot make a volume there."""
        self.plane.kubectl("annotate", "pvc", claim, "-n", "default", SELECTED + "-")
