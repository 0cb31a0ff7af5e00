"""The server: keeps topics as logs and answers the calls of the protocol."""
