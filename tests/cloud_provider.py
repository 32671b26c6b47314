"""Ray's provider of the hosts of cloud_kit: ``provider: {type: external, module: cloud_provider.Provider, url: ...}``."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from ray.autoscaler.node_provider import NodeProvider


class Provider(NodeProvider):  # type: ignore[misc]
    """Asks the cloud over HTTP, from wherever Ray's launcher or its autoscaler runs."""

    def _ask(self, verb: str, **facts: Any) -> Any:
        body = json.dumps({"verb": verb, **facts}).encode()
        request = urllib.request.Request(self.provider_config["url"], body)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        want = {**tag_filters, "ray-cluster-name": self.cluster_name}.items()
        return [
            n
            for n, node in self._ask("list").items()
            if node["up"] and want <= node["tags"].items()
        ]

    def is_running(self, node_id: str) -> bool:
        return bool(self._ask("list")[node_id]["up"])

    def is_terminated(self, node_id: str) -> bool:
        return not self.is_running(node_id)

    def node_tags(self, node_id: str) -> dict[str, str]:
        return dict(self._ask("list")[node_id]["tags"])

    def external_ip(self, node_id: str) -> str:
        return str(self._ask("list")[node_id]["ip"])

    internal_ip = external_ip

    def create_node(self, node_config: Any, tags: dict[str, str], count: int) -> dict[str, Any]:
        tags = {**tags, "ray-cluster-name": self.cluster_name}
        return {self._ask("create", tags=tags): {} for _ in range(count)}

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        self._ask("tags", id=node_id, tags=tags)

    def terminate_node(self, node_id: str) -> None:
        self._ask("terminate", id=node_id)

    @staticmethod
    def bootstrap_config(config: dict[str, Any]) -> dict[str, Any]:
        return config
