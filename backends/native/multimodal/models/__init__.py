"""The bundled multimodal models, one file each."""
