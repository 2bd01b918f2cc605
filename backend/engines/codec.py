"""Text to token ids and back, for every engine that runs a Hugging Face checkpoint.

An id's bytes come from the tokenizer's own decoder, read step by step: decoding ids one at a time through the library
would lose the halves of a character that a byte-level vocabulary splits, and the space that starts a word.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from backend.errors import UserError

_ID_END = 2**31
"""Tokenizers take no larger ids, and no column of the store holds them."""
_TOKENIZER_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SENTENCEPIECE = [{"type": "Metaspace", "replacement": "▁"}, {"type": "ByteFallback"}]
_ACROSS_TOKENS = {"Fuse", "Strip"}
"""Decoder steps that touch a whole text (joining it, trimming its ends), never one token's own bytes."""


class Codec:
    """The tokenizer of one checkpoint folder. Raises `UserError` where the folder has none that can be read."""

    def __init__(self, model: Path) -> None:
        from transformers import AutoTokenizer

        self.model = model
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(f"{model}: has no tokenizer that can be read ({reason[0]})") from None
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        decoder = json.loads(backend.to_str())["decoder"] if backend is not None else None
        self._steps = _flatten(decoder) if backend is not None else _SENTENCEPIECE
        unknown = {step["type"] for step in self._steps} - _ACROSS_TOKENS - set(_STEPS)
        if unknown:
            raise UserError(
                f"{model}: its tokenizer decodes by {', '.join(sorted(unknown))}; "
                "byte-level and SentencePiece vocabularies can be read"
            )
        self._literal: dict[int, Any] = dict(self._tokenizer.added_tokens_decoder)

    def prompt_ids(self, messages: Sequence[dict[str, str]], plain: str) -> list[int]:
        """Token ids of the chat template around `messages` up to the model's turn, or of `plain` without a template."""
        if self._tokenizer.chat_template:
            text = self._tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
            # The template writes its own begin-of-sequence token.
            ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        else:
            ids = self._tokenizer(plain)["input_ids"]
            while ids and ids[-1] in self.eos_ids:  # some tokenizers close what they encode
                ids = ids[:-1]
        if not ids:
            raise UserError("the prompt is empty; give a question")
        return [int(token) for token in ids]

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes each id stands for; none for an id that pads the model's output layer beyond the vocabulary."""
        pieces = {token: self._bytes(token) for token in set(ids)}
        return [pieces[token] for token in ids]

    @cached_property
    def eos_ids(self) -> list[int]:
        """Ids that end a sequence, from the generation config, the model config and the tokenizer together."""
        found = {self._tokenizer.eos_token_id}
        for name in ("generation_config.json", "config.json"):
            value = self._json(name).get("eos_token_id")
            found |= set(value) if isinstance(value, list) else {value}
        return sorted(token for token in found if isinstance(token, int))

    @cached_property
    def special_ids(self) -> list[int]:
        """Control tokens, those of `eos_ids` included: none of them is text."""
        marked = {token for token, added in self._literal.items() if added.special}
        return sorted(marked | set(self._tokenizer.all_special_ids) | set(self.eos_ids))

    @cached_property
    def sha256(self) -> str:
        """Hash over the tokenizer's files, names included."""
        digest = hashlib.sha256()
        for name in _TOKENIZER_FILES:
            path = self.model / name
            if path.is_file():
                digest.update(f"{name}|{path.stat().st_size}|".encode())
                digest.update(path.read_bytes())
        return digest.hexdigest()

    def _json(self, name: str) -> dict[str, Any]:
        path = self.model / name
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def _bytes(self, token: int) -> bytes:
        if token in self._literal:  # added tokens are literal text whatever the vocabulary's alphabet is
            return str(self._literal[token].content).encode()
        piece: str | bytes | None = self._tokenizer.convert_ids_to_tokens(token) if 0 <= token < _ID_END else None
        if piece is None:
            return b""
        for step in self._steps:
            if isinstance(piece, str) and step["type"] in _STEPS:
                piece = _STEPS[step["type"]](piece, step)
        return piece if isinstance(piece, bytes) else piece.encode()


def _flatten(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _flatten(inner)]
    if decoder["type"] == "Replace" and "String" not in decoder["pattern"]:
        return [{"type": "Replace by a regular expression"}]
    return [decoder]


def _byte_alphabet() -> dict[str, int]:
    """Character → byte of byte-level BPE: printable Latin-1 stands for itself, the other 68 bytes for U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _byte_level(piece: str, step: dict[str, Any]) -> bytes:
    if all(character in _ALPHABET for character in piece):
        return bytes(_ALPHABET[character] for character in piece)
    return piece.encode()


def _byte_fallback(piece: str, step: dict[str, Any]) -> str | bytes:
    found = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(found[1], 16)]) if found else piece


def _replace(piece: str, step: dict[str, Any]) -> str:
    return piece.replace(step["pattern"]["String"], step["content"])


def _metaspace(piece: str, step: dict[str, Any]) -> str:
    return piece.replace(step["replacement"], " ")


_STEPS = {"ByteLevel": _byte_level, "ByteFallback": _byte_fallback, "Replace": _replace, "Metaspace": _metaspace}
