"""The bundled demo model: where its weights lie.

A 2.3 M-parameter LLaVA that knows coloured shapes, small sums and a handful of sentences, so that the
gateway answers something true without a download. It is a toy and no benchmark. `tools/demo_model`
trains and measures it. This module imports no torch.
"""

from pathlib import Path

WEIGHTS: Path = Path(__file__).parent / "weights"
"""A plain Hugging Face checkpoint folder (``LlavaForConditionalGeneration``), loadable offline."""
