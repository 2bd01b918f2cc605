"""Downloading a checkpoint of the Hugging Face hub: `python -m backend.hub NAME FOLDER`.

In a process of its own, because the hub client cannot be stopped in the middle. What is there of a folder is gone on
with; the last line on stderr says why it failed.
"""

from __future__ import annotations

import sys
import textwrap

from backend.errors import first_line

WANTED = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja"]
"""Weights that can be loaded without running code, the configuration and the tokenizer."""


def main() -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    name, folder = sys.argv[1:]
    try:
        snapshot_download(name, local_dir=folder, allow_patterns=WANTED)
    except RepositoryNotFoundError:
        sys.exit("it has no such repository, or a private or gated one; check the name, or run `hf auth login`")
    except LocalEntryNotFoundError as error:  # nothing of it came, and nothing is here from before
        reason = textwrap.shorten(first_line(error.__cause__ or error), 90, placeholder=" …")
        sys.exit(f"it does not answer: {reason}; check the network, or give a folder with a checkpoint")
    except Exception as error:  # the hub client raises a dozen kinds more: a full disk, a broken connection
        sys.exit(textwrap.shorten(first_line(error), 180, placeholder=" …"))


if __name__ == "__main__":
    main()
