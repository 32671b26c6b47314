"""A RayJob of KubeRay for one launch: the file of the cluster, with the sweep and what it needs in it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from raybench.cluster.stage import TOKEN
from raybench.cluster.wheel import packed
from raybench.core.errors import InputError

MOUNT, RESULTS = "/raybench-launch", "/results"
MOST_BYTES = 1 << 20  # of a ConfigMap
NAMES = ("raybench-launch", "raybench-token")  # of what the shipped file mounts


def rendered(file: Path, stage: Path, name: str, job: str) -> str:
    """Return the documents to apply: a ConfigMap of the stage, a Secret of the token, and the file's own.

    The RayJob is called ``name`` and runs the stage's ``job.sh``. Raises InputError for a file without a RayJob
    that mounts ``raybench-launch``, and for a stage that a ConfigMap cannot hold.
    """
    parts = [d for d in yaml.safe_load_all(file.read_text()) if d]
    job_parts = [d for d in parts if isinstance(d, dict) and d.get("kind") == "RayJob"]
    if len(job_parts) != 1:
        raise InputError.of(
            "--cluster", f"{file} holds {len(job_parts)} RayJobs", "one is launched"
        )
    data = {p: (stage / p).read_bytes() for p in _files(stage) if p != TOKEN}
    data = {
        p + ".xz" * p.endswith(".whl"): packed(held) if p.endswith(".whl") else held
        for p, held in data.items()
    }
    size = sum(map(len, data.values()))
    if size > MOST_BYTES:
        what = f"the sweep with its data and the wheel take {size:,} bytes, a ConfigMap holds {MOST_BYTES:,}"
        raise InputError.of(
            "--cluster", what, "put the data into the image or a volume: docs/cluster.md"
        )
    keys = {path: path.replace("/", "..") for path in data}
    launch, token = (f"{base}-{name}" for base in NAMES)
    parts = [_named(deepcopy(d), dict(zip(NAMES, (launch, token))), keys) for d in parts]
    one = next(d for d in parts if d.get("kind") == "RayJob")
    one["metadata"]["name"] = name
    # the job writes beside itself, and a ConfigMap is read-only
    copied = f"cp -rL {MOUNT} /tmp/raybench-launch && bash /tmp/raybench-launch/job.sh"
    one["spec"] |= {"jobId": job, "entrypoint": f"bash -c '{copied}'"}
    if one not in parts or launch not in yaml.safe_dump(one):
        raise InputError.of(
            "--cluster", f"the RayJob of {file} mounts no {NAMES[0]}", "see cluster/kuberay.yaml"
        )
    secret = {"auth_token": base64.b64encode((stage / TOKEN).read_bytes()).decode()}
    made = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": launch},
            "binaryData": {keys[p]: base64.b64encode(data[p]).decode() for p in data},
        },
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": token}, "data": secret},
    ]
    return yaml.safe_dump_all([*made, *parts], sort_keys=False)


def _files(stage: Path) -> Iterator[str]:
    yield from sorted(p.relative_to(stage).as_posix() for p in stage.rglob("*") if p.is_file())


def _named(value: Any, names: dict[str, str], keys: dict[str, str]) -> Any:
    """Return a document with the ConfigMap and the Secret by their names of this launch.

    The keys of a ConfigMap are no paths: its volume says which file each is.
    """
    if isinstance(value, list):
        return [_named(part, names, keys) for part in value]
    if not isinstance(value, dict):
        return value
    new = {key: _named(part, names, keys) for key, part in value.items()}
    if isinstance(new.get("configMap"), dict) and new["configMap"].get("name") == NAMES[0]:
        items = [{"key": key, "path": path} for path, key in keys.items()]
        new["configMap"] = {"name": names[NAMES[0]], "items": items}
    if new.get("secretName") == NAMES[1]:
        new["secretName"] = names[NAMES[1]]
    return new
