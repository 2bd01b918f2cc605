"""Downloading a checkpoint of the Hugging Face hub: `python -m backend.hub NAME FOLDER`.

In a process of its own, because the hub client cannot be stopped in the middle. What is there of a folder is gone on
with; the last line on stderr says why it failed.
"""

from __future__ import annotations

import sys

WANTED = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja"]
"""Weights that can be loaded without running code, the configuration and the tokenizer."""


def main() -> None:
    from huggingface_hub import snapshot_download

    name, folder = sys.argv[1:]
    try:
        snapshot_download(name, local_dir=folder, allow_patterns=WANTED)
    except Exception as error:  # the hub client raises a dozen kinds: gated, missing, offline, disk
        sys.exit(" ".join(str(error).split()) or type(error).__name__)


if __name__ == "__main__":
    main()
