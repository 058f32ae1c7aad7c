"""What everything stands on: trees of tensors, numbers, claims, and the private functions of PyTorch."""
