"""Tool calls and reasoning in the text of chat models: one table row per family, one reader, one grammar maker."""
