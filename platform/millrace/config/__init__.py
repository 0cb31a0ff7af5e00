"""Configuration loader and the configurations."""
