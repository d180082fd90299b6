"""Chat templates of models, rendered in child processes under limits: a template is code of whoever made the model."""

from backends.chat_template.template import ChatTemplate

__all__ = ["ChatTemplate"]
