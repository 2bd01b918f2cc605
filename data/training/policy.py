"""The policy: a checkpoint with a LoRA adapter that is trained, and its merged copy that samples.

Sampling from the merged bfloat16 copy is faster than from the adapter, and it is what ships: `backend.conversion`
merges with the same arithmetic.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from backend.conversion import ADAPTER_WEIGHTS, merged
from backend.grading import grade
from data.problems.generate import Row
from data.training.batches import Batch, pack, prompt_ids, sampled

RANK = 8
ALPHA = 16
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Policy:
    """A base checkpoint with an adapter of rank 8 on every projection."""

    def __init__(self, base: Path, seed: int, device: str) -> None:
        torch.manual_seed(seed)
        self.device = torch.device(device)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(base)
        model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
        # Tokenizers made from a GGUF name another end, or none, depending on the library's release.
        self.end = int(model.generation_config.eos_token_id)
        model.to(self.device)
        self.sampler: Any = copy.deepcopy(model).eval()
        lora = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, lora_dropout=0.0, task_type="CAUSAL_LM")
        self.trained: Any = get_peft_model(model, lora)
        self.parameters = [p for p in self.trained.parameters() if p.requires_grad]

    def synchronise(self) -> None:
        """Give the sampler the trained weights, merged."""
        with torch.no_grad():
            for name, module in self.trained.base_model.model.named_modules():
                if hasattr(module, "lora_A"):
                    down, up = module.lora_A["default"].weight, module.lora_B["default"].weight
                    weight = merged(module.base_layer.weight, down, up, ALPHA / RANK)
                    self.sampler.get_submodule(name).weight.copy_(weight)

    def frozen_sampler(self) -> Any:
        """A copy of the sampler as it is now."""
        return copy.deepcopy(self.sampler).requires_grad_(False)

    @torch.no_grad()
    def sample(self, rows: Sequence[Row], *, temperature: float, top_p: float, max_tokens: int) -> Batch:
        """One completion a problem by the sampler; repeat a problem for more."""
        start = pack(prompt_ids(self.tokenizer, rows), [[]] * len(rows), self.end, self.device)
        ids = self.sampler.generate(
            input_ids=start.ids,
            attention_mask=start.mask,
            do_sample=True,
            temperature=temperature,
            top_p=top_p,
            top_k=0,
            max_new_tokens=max_tokens,
            eos_token_id=self.end,
            pad_token_id=self.end,
        )
        return sampled(ids, start.mask, self.end)

    def texts(self, batch: Batch) -> list[str]:
        """The completions' texts."""
        kept = [row[mask > 0] for row, mask in zip(batch.completions.cpu(), batch.scored.cpu(), strict=True)]
        return list(self.tokenizer.batch_decode(kept, skip_special_tokens=True))

    def right(self, batch: Batch, rows: Sequence[Row]) -> Tensor:
        """bool[N], on the CPU: whether each completion ended by itself with its problem's answer."""
        graded = [grade(text, row["answer"]).correct for text, row in zip(self.texts(batch), rows, strict=True)]
        return torch.tensor(graded, dtype=torch.bool) & batch.finished(self.end).cpu()

    def round_adapter(self) -> None:
        """Round the adapter to bfloat16, as it ships, and give it to the sampler: what is evaluated is what ships."""
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.copy_(parameter.bfloat16())
        self.synchronise()

    def save(self, folder: Path, base_name: str) -> str:
        """Write PEFT's two files, weights in bfloat16; return the weights' SHA-256."""
        folder.mkdir(parents=True, exist_ok=True)
        # "auto" would look for the base's config on the hub, to see whether the vocabulary has grown.
        state = get_peft_model_state_dict(self.trained, save_embedding_layers=False)
        state = {name: tensor.to("cpu", torch.bfloat16).contiguous() for name, tensor in state.items()}
        save_file(state, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        config = copy.deepcopy(self.trained.peft_config["default"])
        config.base_model_name_or_path = base_name
        config.inference_mode = True
        config.save_pretrained(folder)
        return hashlib.sha256((folder / ADAPTER_WEIGHTS).read_bytes()).hexdigest()

    def autocast(self) -> torch.autocast:
        """bfloat16 arithmetic around the adapter's float32 weights."""
        return torch.autocast(self.device.type, torch.bfloat16)


def completion_logits(model: Any, batch: Batch) -> Tensor:
    """float32[N, C, V]: the logits that each completion token was drawn from."""
    output = model(
        input_ids=batch.ids,
        attention_mask=batch.mask,
        position_ids=batch.positions,
        logits_to_keep=batch.completions.shape[1] + 1,
        use_cache=False,
    )
    logits: Tensor = output.logits[:, :-1].float()
    return logits


def token_logprobs(logits: Tensor, batch: Batch) -> Tensor:
    """float32[N, C]: raw logprob of each completion token."""
    chosen = logits.gather(2, batch.completions.unsqueeze(2)).squeeze(2)
    return chosen - logits.logsumexp(2)


def low_margins(logits: Tensor, batch: Batch, below: float = 1.0) -> Tensor:
    """float32[N]: how many tokens of each completion have a raw logprob margin top1 − top2 under `below`."""
    top = logits.topk(2, dim=2).values
    return ((top[..., 0] - top[..., 1] < below) * batch.scored).sum(1)
