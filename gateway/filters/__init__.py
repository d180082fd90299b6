"""Filters of requests and answers: code of the operator that may refuse or change texts (guardrails)."""
