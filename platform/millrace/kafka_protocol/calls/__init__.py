"""Requests and responses, a module for each call.

``table`` has the API keys.
"""
