"""Tiny checkpoints with random weights: real architectures, real tokenizer files, a second to make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CORPUS = [
    "Mia has 12 apples and buys 7 more. How many apples does Mia have now? Answer: 19",
    "There are 4 boxes with 6 marbles in each box. How many marbles are there in total? Answer: 24",
    "Tom had 15 stickers and gave away 8. How many stickers are left? Answer: 7",
]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VOCABULARY = 512


def make_checkpoint(folder: Path, architecture: str = "llama", hidden: int = 128, **config: Any) -> Path:
    """A checkpoint of `architecture` (llama, qwen2, qwen3 or phi3) in `folder`; the same arguments give the same bits.

    Weights are drawn wide enough that next-token distributions are neither flat nor certain.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = _tokenizer()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": END,
                "pad_token": PAD,
                "chat_template": TEMPLATE,
            }
        )
    )
    end, pad, start = (tokenizer.token_to_id(name) for name in (END, PAD, START))
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 4,
        "num_attention_heads": hidden // 32,
        "num_key_value_heads": hidden // 64,
        "head_dim": 32,
        "max_position_embeddings": 1024,
        "initializer_range": 0.12,
        "tie_word_embeddings": False,
        "bos_token_id": start,
        "eos_token_id": end,
        "pad_token_id": pad,
        "torch_dtype": "float32",
    }
    if architecture == "phi3":
        del settings["head_dim"]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **(settings | config)))
    model.save_pretrained(folder)
    return folder


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 2, trainer)
    return tokenizer
