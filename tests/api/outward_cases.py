"""Models that published families compute, as runs that were never trained; and those families' forward, written apart.

:func:`logits_of` knows only a folder that was exported: ``config.json``, names of weights, and what the papers and
``transformers`` say these families compute. Nothing of Paceline's own modules is in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from paceline.compute.models.decoder import Decoder
from paceline.job import Job
from paceline.ledger.folder import RunFolder, create
from paceline.ledger.status import Status
from paceline.recover.save import save
from paceline.recover.state import collect
from tests.recover.cases import IDENTITY

SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied, one head dim of its own": ("llama", {"tie_word_embeddings": True, "head_dim": 16}),
    "llama, biased, scaled positions": (
        "llama",
        {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True, "rope_scaling": LLAMA3},
    ),
    "llama, gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh", "rope_theta": 500.0}),
    "mistral": ("mistral", {"sliding_window": 5}),
    "qwen2": ("qwen2", {"attention_bias": True, "rms_norm_eps": 1e-3}),
    "qwen2, sliding from the second": (
        "qwen2",
        {"attention_bias": True, "sliding_window": 5,
         "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
    ),
    "qwen3": ("qwen3", {"qk_norm": True, "head_dim": 16}),
    "mixtral": ("mixtral", EXPERTS),
    "qwen3_moe": ("qwen3_moe", {**EXPERTS, "qk_norm": True, "norm_topk_prob": False, "first_k_dense_replace": 1}),
}  # fmt: skip
VOCAB = 61


def untrained(root: Path, own: dict[str, Any], *, seed: int = 0) -> RunFolder:
    """A run of this model with a checkpoint of step 2, in float64; every weight is random, norms and biases too."""
    keys = {f"model.{name}": value for name, value in {**SIZES, **own}.items()}
    job = Job(data={"train": "corpus.txt"}).replace({**keys, "train.precision": "fp64"})
    folder = create(root, "lm")
    Status(state="done").write(folder.status)
    job.save(folder.job_toml)
    generator = torch.Generator().manual_seed(seed)
    model = Decoder(job.model.widths(VOCAB), torch.float64).to(torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(noise * 0.3 + (1.0 if parameter.ndim == 1 else 0.0))
    optimizer = torch.optim.AdamW(model.parameters())
    save(folder.checkpoints, collect(model, optimizer, {"step": 2}), layout="single", identity=IDENTITY)
    return folder


def weights_of(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the folder's files, by the index where there is one."""
    index = folder / "model.safetensors.index.json"
    names = (
        set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else {"model.safetensors"}
    )
    found: dict[str, Tensor] = {}
    for name in sorted(names):
        found |= load_file(folder / name)
    return found


def logits_of(folder: Path, tokens_BT: Tensor) -> Tensor:
    """What ``transformers`` computes of the folder, logits [B, T, V] in float64."""
    config, weights = json.loads((folder / "config.json").read_text()), weights_of(folder)
    used = set()

    def take(name: str) -> Tensor:
        used.add(name)
        return weights[name].double()

    def linear(x: Tensor, name: str) -> Tensor:
        bias = take(f"{name}.bias") if f"{name}.bias" in weights else None
        return F.linear(x, take(f"{name}.weight"), bias)

    def norm(x: Tensor, name: str) -> Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]).rsqrt() * take(f"{name}.weight")

    def expert(x: Tensor, gate: str, up: str, down: str) -> Tensor:
        return linear(_act(config["hidden_act"])(linear(x, gate)) * linear(x, up), down)

    def feed_forward(x: Tensor, at: str, layer: int) -> Tensor:
        kind = config["model_type"]
        if kind not in ("mixtral", "qwen3_moe") or layer in config.get("mlp_only_layers", ()):
            return expert(x, f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj", f"{at}.mlp.down_proj")
        home, parts = (
            (f"{at}.block_sparse_moe", ("w1", "w3", "w2"))
            if kind == "mixtral"
            else (f"{at}.mlp", ("gate_proj", "up_proj", "down_proj"))
        )
        scores = linear(x, f"{home}.gate").softmax(-1)
        best, chosen = scores.topk(config["num_experts_per_tok"], -1)
        if config.get("norm_topk_prob", True):
            best = best / best.sum(-1, keepdim=True)
        share = torch.zeros_like(scores).scatter(-1, chosen, best)
        outs = [
            expert(x, *(f"{home}.experts.{e}.{part}" for part in parts)) * share[..., e, None]
            for e in range(scores.shape[-1])
        ]
        return torch.stack(outs).sum(0)

    def attention(x: Tensor, at: str, layer: int) -> Tensor:
        head, heads, groups = config["head_dim"], config["num_attention_heads"], config["num_key_value_heads"]
        split = (*x.shape[:2], -1, head)
        q, k, v = (linear(x, f"{at}.{p}_proj").view(split) for p in "qkv")
        if config["model_type"].startswith("qwen3"):
            q, k = norm(q, f"{at}.q_norm"), norm(k, f"{at}.k_norm")
        q, k = _rotated(q, config), _rotated(k, config)
        k, v = (part.repeat_interleave(heads // groups, 2) for part in (k, v))
        scores = torch.einsum("bqhk,bshk->bhqs", q, k) / head**0.5
        ago = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])[None]
        seen = ago >= 0
        if _slides(config, layer):
            seen &= ago < config["sliding_window"]
        mixed = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return linear(torch.einsum("bhqs,bshk->bqhk", mixed, v).flatten(2), f"{at}.o_proj")

    x = F.embedding(tokens_BT, take("model.embed_tokens.weight"))
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        x = x + attention(norm(x, f"{at}.input_layernorm"), f"{at}.self_attn", layer)
        x = x + feed_forward(norm(x, f"{at}.post_attention_layernorm"), at, layer)
    head = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    logits = F.linear(norm(x, "model.norm"), take(f"{head}.weight"))
    assert used == set(weights), "every tensor of the folder is used"
    return logits


def _act(name: str) -> Any:
    return {"silu": F.silu, "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh")}[name]


def _slides(config: dict[str, Any], layer: int) -> bool:
    if config["model_type"] == "mistral":
        return config["sliding_window"] is not None
    return bool(config.get("use_sliding_window")) and layer >= config["max_window_layers"]


def _rotated(x_BTHK: Tensor, config: dict[str, Any]) -> Tensor:
    size = x_BTHK.shape[-1]
    frequencies = config["rope_theta"] ** (-torch.arange(0, size, 2).double() / size)
    scaling = config["rope_scaling"]
    if scaling is not None:  # Llama 3.1
        waves = 2 * torch.pi / frequencies
        low, high, most = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
        ramp = ((scaling["original_max_position_embeddings"] / waves - low) / (high - low)).clamp(0, 1)
        frequencies = frequencies * ((1 - ramp) / most + ramp)
    angles = torch.arange(x_BTHK.shape[1]).double()[:, None] * frequencies
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x_BTHK[..., : size // 2], x_BTHK[..., size // 2 :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
