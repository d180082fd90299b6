"""Write the model as a checkpoint folder for ``from_pretrained``, in bfloat16."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from transformers import LlavaForConditionalGeneration, LlavaProcessor, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from tools.demo_model.model import PATCH_SIZE
from tools.demo_model.samples.image_chats import IMAGE_SIZE
from tools.demo_model.tokenizer import IMAGE, SPECIAL_TOKENS


def save(model: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Save model, tokenizer, template and image processor; ``model`` itself is not changed."""
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    image_processor = CLIPImageProcessorPil(
        size={"height": IMAGE_SIZE, "width": IMAGE_SIZE},
        do_center_crop=False,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    processor = LlavaProcessor(
        image_processor=image_processor,
        tokenizer=tokenizer,
        patch_size=PATCH_SIZE,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,  # the tower's class token, which "default" drops again
        image_token=SPECIAL_TOKENS[IMAGE],
        chat_template=tokenizer.chat_template,
    )
    processor.save_pretrained(folder)
    image_processor.save_pretrained(folder)
