"""Gradient compression as DDP hooks: `attach(model, Gathered(ErrorFeedback(Sidco(...))))` and nothing else changes."""
