"""The gRPC messages of millrace and their generated stubs."""
