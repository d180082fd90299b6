"""Training of the bundled demo model: data, tokenizer, model, evaluation."""
