"""The benchmarks' models: plain modules whose parameter counts a test pins to the paper's."""
