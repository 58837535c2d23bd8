"""The choice of hardware."""
