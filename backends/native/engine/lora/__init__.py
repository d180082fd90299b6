"""LoRA: configuration, weights and the layers that apply them."""
