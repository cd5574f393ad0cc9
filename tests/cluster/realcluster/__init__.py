"""A true Kubernetes cluster on one machine, in namespaces of its own. See ../README.md; start reading at
cluster.py."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
# Certificates and waiting are shared with the tests that need an API server alone.
sys.path.insert(0, str(ROOT / "tests" / "integration"))
