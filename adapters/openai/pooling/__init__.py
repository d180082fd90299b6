"""Requests whose answers are vectors or scores, not text: embeddings, reranking, scoring, classification."""
