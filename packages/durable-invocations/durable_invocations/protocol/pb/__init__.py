"""The messages of the protocol: protocol.proto, its licence, and what protoc makes of it.

custom.proto is ours. Made by `python -m grpc_tools.protoc -I. --python_out=. --pyi_out=.` with the
files' paths from the repository's root and grpcio-tools 1.62.3, whose code runs on protobuf 4.25
and later.
"""
