"""KServe v2 over gRPC: the tensors of `infer` as Protocol Buffers, whole or as a stream of responses."""
