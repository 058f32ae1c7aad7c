"""What everything stands on: trees of tensors, numbers, and the private functions of PyTorch."""
