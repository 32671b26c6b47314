"""How tests start Python in processes of its own that they talk to, stop or kill."""

import subprocess
import sys
from typing import Any


def python(*words: object, **how: Any) -> subprocess.Popen[str]:
    """Start Python with these words, its input, output and errors pipes of text unless told otherwise."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, *map(str, words)], text=True, **{**pipes, **how})
