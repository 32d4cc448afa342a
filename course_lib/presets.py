"""Well-known models by name, as the facts of their public Hugging Face config.json.

Each preset is itself such a config, cut down to what decides sizes, so that a
:class:`~course_lib.shape.ModelShape` and a real transformers model are built from the same entry.
"""

from typing import Any

Config = dict[str, Any]


def _llama_like(
    family: str, hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, vocab: int, context: int, **more: Any
) -> Config:
    return {
        "model_type": family,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "tie_word_embeddings": False,
        **more,
    }


def _gpt2(hidden: int, layers: int, heads: int) -> Config:
    sizes = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": 1024, "vocab_size": 50257}
    return {"model_type": "gpt2", **sizes}


#: Sources: config.json of meta-llama/Llama-2-{7b,13b,70b}-hf, meta-llama/Meta-Llama-3-8B,
#: meta-llama/Llama-3.2-{1B,3B}, TinyLlama/TinyLlama-1.1B-Chat-v1.0, HuggingFaceTB/SmolLM2-135M,
#: mistralai/Mistral-7B-v0.1, Qwen/Qwen2.5-{0.5B,1.5B,3B,7B,14B}, openai-community/gpt2{,-medium,-large,-xl}.
PRESETS: dict[str, Config] = {
    "llama-7b": _llama_like("llama", 4096, 11008, 32, 32, 32, 32000, 4096),
    "llama-13b": _llama_like("llama", 5120, 13824, 40, 40, 40, 32000, 4096),
    "llama-70b": _llama_like("llama", 8192, 28672, 80, 64, 8, 32000, 4096),
    "llama3-8b": _llama_like("llama", 4096, 14336, 32, 32, 8, 128256, 8192),
    "llama3.2-1b": _llama_like("llama", 2048, 8192, 16, 32, 8, 128256, 131072, head_dim=64, tie_word_embeddings=True),
    "llama3.2-3b": _llama_like("llama", 3072, 8192, 28, 24, 8, 128256, 131072, head_dim=128, tie_word_embeddings=True),
    "tinyllama-1.1b": _llama_like("llama", 2048, 5632, 22, 32, 4, 32000, 2048),
    "smollm2-135m": _llama_like("llama", 576, 1536, 30, 9, 3, 49152, 8192, tie_word_embeddings=True),
    "mistral-7b": _llama_like("mistral", 4096, 14336, 32, 32, 8, 32000, 32768, sliding_window=4096),
    "qwen2.5-0.5b": _llama_like("qwen2", 896, 4864, 24, 14, 2, 151936, 32768, tie_word_embeddings=True),
    "qwen2.5-1.5b": _llama_like("qwen2", 1536, 8960, 28, 12, 2, 151936, 131072, tie_word_embeddings=True),
    "qwen2.5-3b": _llama_like("qwen2", 2048, 11008, 36, 16, 2, 151936, 32768, tie_word_embeddings=True),
    "qwen2.5-7b": _llama_like("qwen2", 3584, 18944, 28, 28, 4, 152064, 131072),
    "qwen2.5-14b": _llama_like("qwen2", 5120, 13824, 48, 40, 8, 152064, 131072),
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
}
