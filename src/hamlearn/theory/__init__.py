"""The theory: the derivatives of H, the state's transition, the weights' velocity, the rates of a step."""
