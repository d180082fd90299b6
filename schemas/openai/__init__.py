"""Wire structs of the OpenAI protocol: chat, completions, embeddings, models, errors; also MindIE's and Databricks'.

`requests` and `answers` are those of our clients, `remote` has the answers of other servers; the Responses API is in
`responses`. Field order is byte order on the wire. Bounds and defaults vary by dialect and are checked in
`adapters.openai`.
Sources: openai/openai-openapi:openapi.yaml (2.3.0); recorded streams in openai/openai-python:.inline-snapshot/external;
MindIE's page "推理接口"; the extensions are vLLM's, SGLang's and TGI's names.
"""
