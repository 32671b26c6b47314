"""raybench schema: what a sweep file may say, as JSON schema."""

from __future__ import annotations

from raybench.cli.shared import Plugins


def schema(plugin: Plugins = None) -> None:
    """Print the JSON schema of sweep files, with all defaults.

    For editors: save it and point their YAML support to it.
    """
    import json

    from raybench import spec
    from raybench.core import registry

    for file in plugin or ():
        registry.load_plugin(file)
    print(json.dumps(spec.json_schema(), indent=2))
