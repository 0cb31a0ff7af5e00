"""The one configuration loader, and what can be configured."""
