"""The codec against the tokenizer library's own decoding of whole texts."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from backend.engines.codec import Codec
from backend.errors import UserError

CORPUS = [
    "Mia has 12 apples and buys 7 more. How many apples does Mia have now?",
    "naïve façade, Ω ≈ 3.14 — 日本語のテキスト 🙂🙃",
    "def f(x):\n\treturn x ** 2  # two  spaces",
]
UNSEEN = [
    "Größe ‰ ½ 🚀\n\n  indented",
    "answer: -7,000.50%",
    "\u200b\u0000\x7f¶",
    "中文字符",
    "  leading and trailing  ",
]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>"]


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def sentencepiece() -> Tokenizer:
    """The decoder of Llama 2 and Mistral: ▁ for a space, <0xNN> for a byte without a piece."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    # Training marks the byte pieces as special; in these vocabularies they are ordinary ones.
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = [token for token in document["added_tokens"] if not token["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(document))


def checkpoint(folder: Path, tokenizer: Tokenizer, config: dict[str, Any], template: str | None = TEMPLATE) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    if template:
        names["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"} | config))
    return folder


@pytest.fixture(params=[byte_level, sentencepiece])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    made: Tokenizer = request.param()
    return made


def test_bytes_of_a_text_join_to_the_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    codec = Codec(checkpoint(tmp_path, tokenizer, {}))
    prefix = b" " if "Strip" in tokenizer.to_str() else b""
    for text in CORPUS + UNSEEN:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert b"".join(codec.token_bytes(ids)) == prefix + text.encode()


def test_every_piece_between_words_reads_as_the_library_decodes_it(tokenizer: Tokenizer, tmp_path: Path) -> None:
    codec = Codec(checkpoint(tmp_path, tokenizer, {}))
    # A piece between words that no decoder step touches keeps the text's ends and byte runs out of the comparison.
    word = tokenizer.encode("apples", add_special_tokens=False).ids
    ordinary = [i for i in range(tokenizer.get_vocab_size()) if i not in codec.special_ids]
    for token in ordinary:
        piece = codec.token_bytes([token])[0]
        if piece.decode(errors="replace").encode() != piece:
            continue  # part of a character: covered by whole texts
        ids = [*word, token, *word]
        expected = tokenizer.decode(ids, skip_special_tokens=False)
        assert b"".join(codec.token_bytes(ids)).decode().removeprefix(" ") == expected, token


def test_byte_level_random_ids_equal_the_library_with_replacement(tmp_path: Path) -> None:
    """Sampled ids need not be an encoding of anything: broken UTF-8 must read the same too."""
    tokenizer = byte_level()
    codec = Codec(checkpoint(tmp_path, tokenizer, {}))
    generator = random.Random(5)
    ordinary = range(len(SPECIAL), tokenizer.get_vocab_size())
    for _ in range(200):
        ids = generator.choices(ordinary, k=12)
        joined = b"".join(codec.token_bytes(ids)).decode(errors="replace")
        assert joined == tokenizer.decode(ids), ids


def test_every_byte_has_a_token_of_its_own(tokenizer: Tokenizer, tmp_path: Path) -> None:
    codec = Codec(checkpoint(tmp_path, tokenizer, {}))
    single = set(codec.token_bytes(range(tokenizer.get_vocab_size())))
    assert {bytes([byte]) for byte in range(256)} <= single


def test_added_tokens_are_literal_and_padding_ids_empty(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.add_tokens([AddedToken("Ġé ▁x", special=False)])
    codec = Codec(checkpoint(tmp_path, tokenizer, {}))
    added = tokenizer.token_to_id("Ġé ▁x")
    user = tokenizer.token_to_id("<|user|>")
    size = tokenizer.get_vocab_size()
    assert codec.token_bytes([added, user, size, size + 1000, -1]) == ["Ġé ▁x".encode(), b"<|user|>", b"", b"", b""]
    assert added not in codec.special_ids
    assert user in codec.special_ids


def test_chat_template_or_plain_prompt(tokenizer: Tokenizer, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "apples"}]
    ids = Codec(checkpoint(tmp_path, tokenizer, {})).prompt_ids(messages, "unused")
    assert tokenizer.decode(ids, skip_special_tokens=False).replace(" ", "") == "<s><|user|>apples<|assistant|>"
    start = tokenizer.token_to_id("<s>")
    assert ids.count(start) == 1

    end = tokenizer.token_to_id("</s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", start), ("</s>", end)]
    )
    bare = Codec(checkpoint(tmp_path, tokenizer, {}, template=None))
    assert bare.prompt_ids(messages, "Mia has") == [start, *tokenizer.encode("Mia has", add_special_tokens=False).ids]


def test_an_empty_prompt_is_refused(tmp_path: Path) -> None:
    codec = Codec(checkpoint(tmp_path, byte_level(), {}, template=None))
    with pytest.raises(UserError, match="the prompt is empty"):
        codec.prompt_ids([], "")


def test_end_of_sequence_ids_come_from_every_place_that_names_one(tmp_path: Path) -> None:
    tokenizer = byte_level()
    folder = checkpoint(tmp_path, tokenizer, {"eos_token_id": 3})
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 3]}))
    codec = Codec(folder)
    assert codec.eos_ids == [tokenizer.token_to_id("</s>"), 2, 3] == [1, 2, 3]
    assert set(codec.eos_ids) <= set(codec.special_ids)


def test_the_hash_follows_the_files(tmp_path: Path) -> None:
    codec = Codec(checkpoint(tmp_path, byte_level(), {}))
    again = Codec(tmp_path)
    assert codec.sha256 == again.sha256
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert Codec(tmp_path).sha256 != codec.sha256


def test_a_folder_without_a_tokenizer_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError) as caught:
        Codec(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}: has no tokenizer that can be read (")
    assert "\n" not in str(caught.value)


def test_an_unreadable_decoder_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(UserError, match="decodes by WordPiece"):
        Codec(checkpoint(tmp_path, tokenizer, {}))
