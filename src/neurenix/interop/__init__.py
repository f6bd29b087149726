"""Models of other frameworks, brought here: one package for each, imported on use."""
