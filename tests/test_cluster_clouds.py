"""The nodes of cluster files against what the clouds say of their interfaces, and on an emulated EC2."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

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


EMULATED = """
import copy, json, os, sys, yaml
import boto3, moto
import ray.autoscaler._private.aws.config as config
from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
from ray.autoscaler._private.util import prepare_config
config.time.sleep = lambda seconds: None
with moto.mock_aws():
    given = prepare_config(yaml.safe_load(open(sys.argv[1])))
    ec2 = boto3.resource("ec2", given["provider"]["region"])
    if sys.argv[2] == "own":
        (vpc,) = [one for one in ec2.vpcs.all() if one.is_default]
        group = ec2.create_security_group(GroupName="raybench", Description="own", VpcId=vpc.id)
        one = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "203.0.113.7/32"}]}
        group.authorize_ingress(IpPermissions=[one])
    made = config.bootstrap_aws(given)
    nodes = {kind: node["node_config"] for kind, node in made["available_node_types"].items()}
    (group,) = {name for node in nodes.values() for name in node["SecurityGroupIds"]}
    rules = ec2.SecurityGroup(group).ip_permissions
    provider = AWSNodeProvider(made["provider"], made["cluster_name"])
    for kind, node in nodes.items():
        image = next(iter(ec2.images.all())).id  # the emulation does not look names up
        provider.create_node({**copy.deepcopy(node), "ImageId": image}, {"ray-user-node-type": kind}, 1)
    alive = [ec2.Instance(one) for one in provider.non_terminated_nodes({})]
    print(json.dumps({
        "open": [[r.get("FromPort"), i["CidrIp"]] for r in rules for i in r["IpRanges"]],
        "nodes": sorted([one.instance_type, one.instance_lifecycle or "on demand"] for one in alive),
        "roles": ["IamInstanceProfile" in node for node in nodes.values()],
    }))
"""


@pytest.mark.slow
@pytest.mark.parametrize("group", ["ray's", "own"])
def test_ray_starts_the_nodes_on_an_emulated_ec2(group: str, tmp_path: Path) -> None:
    """Ray's own provider against moto: what is started, and who is let in."""
    if importlib.util.find_spec("moto") is None:
        pytest.skip("moto is not installed")
    env = {**os.environ, "HOME": str(tmp_path), "MOTO_IAM_LOAD_MANAGED_POLICIES": "true"}
    env |= {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    command = [sys.executable, "-c", EMULATED, ROOT / "cluster.yaml", group]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    anybody = "0.0.0.0/0" if group == "ray's" else "203.0.113.7/32"
    assert said["open"] == [[22, anybody]], (
        "ssh and nothing else; a group with rules stays as it is"
    )
    assert said["nodes"] == [
        ["c7i.4xlarge", "spot"],
        ["g6.xlarge", "spot"],
        ["m7i.large", "on demand"],
    ]
    assert not any(said["roles"]), "Ray gives a role to the head alone"
