"""Models of Hugging Face transformers that are built, captured and run within a moment."""

from __future__ import annotations

from typing import Any

import transformers

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def bert_config(**settings: Any) -> transformers.BertConfig:
    """A BERT of two layers, 60 tokens and texts of up to 24, but for the settings."""
    return transformers.BertConfig(**{"vocab_size": 60, "max_position_embeddings": 24, **SMALL, **settings})
