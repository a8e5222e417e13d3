"""What scripts/gpu-check is made of: cases.py says what is packed, packing.py packs it, stages.py runs it."""
