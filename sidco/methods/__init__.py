"""Schemes that are a dialogue of their own, of several rounds: what `Gathered` around a compressor cannot say."""
