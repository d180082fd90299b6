"""Wire structs of the OpenAI protocol: chat, completions, embeddings, models, errors. MindIE, Databricks use them too.

`requests` and `answers` are what our clients send and get, `remote` is what other servers answer us; the Responses API
is in `schemas.responses`. Field order is byte order on the wire. Bounds and defaults vary by dialect and are checked in
`adapters.openai`.
Sources: openai/openai-openapi:openapi.yaml (2.3.0); recorded streams in openai/openai-python:.inline-snapshot/external;
MindIE's page "推理接口"; the extensions are vLLM's, SGLang's and TGI's names.
"""
