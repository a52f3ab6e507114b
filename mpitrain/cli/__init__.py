"""The commands that train: what they need before the first step, and what they leave behind."""
