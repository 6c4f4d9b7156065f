"""The layers: set convolutions and U-Nets."""
