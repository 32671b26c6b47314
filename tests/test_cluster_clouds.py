"""The nodes of cluster files against what the clouds say of their interfaces, and on an emulated EC2."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


def test_azure_parameters_are_those_of_rays_template() -> None:
    import ray.autoscaler._private as private

    template = Path(private.__path__[0]) / "_azure" / "azure-vm-template.json"
    known = json.loads(template.read_text())["parameters"]
    python = {"string": str, "int": int, "object": dict, "bool": bool}
    for kind, node in read("cluster/azure.yaml")["available_node_types"].items():
        given = dict(node["node_config"]["azure_arm_parameters"])
        assert given.pop("availability_zone") in ("auto", "none")  # Ray's own, beside the template
        for name, value in given.items():
            assert name in known, f"{kind}: {name}"
            assert isinstance(value, python[known[name]["type"]]), f"{kind}: {name}"


def test_google_deletes_every_machine_after_hours_and_on_preemption() -> None:
    given = read("cluster/gcp.yaml")
    for node in given["available_node_types"].values():
        scheduling = node["node_config"]["scheduling"]
        assert scheduling["instanceTerminationAction"] == "DELETE"
        assert 0 < int(scheduling["maxRunDuration"]["seconds"]) <= 86_400
        assert node["node_config"]["tags"] == {"items": ["raybench"]}, "what the firewall goes by"
        (interface,) = node["node_config"]["networkInterfaces"]
        assert interface["subnetwork"].endswith(
            f"regions/{given['provider']['region']}/subnetworks/raybench"
        )
    region = given["provider"]["region"]
    assert given["provider"]["availability_zone"].startswith(f"{region}-")


def test_ec2_takes_the_nodes() -> None:
    """Every field against Amazon's own description of RunInstances, where its client is installed."""
    if importlib.util.find_spec("botocore") is None:
        pytest.skip("botocore is not installed")
    import botocore.session
    from botocore.validate import ParamValidator

    ec2 = botocore.session.get_session().get_service_model("ec2")
    shape = ec2.operation_model("RunInstances").input_shape
    for kind, node in read("cluster.yaml")["available_node_types"].items():
        given = {**node["node_config"], "MinCount": 1, "MaxCount": 1}
        report = ParamValidator().validate(given, shape)
        assert not report.has_errors(), f"{kind}: {report.generate_report()}"
        assert given["MetadataOptions"] == {"HttpTokens": "required"}
        assert given["InstanceInitiatedShutdownBehavior"] == "terminate"
