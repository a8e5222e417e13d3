"""scripts/gpu-check, and what it packs; see there."""
