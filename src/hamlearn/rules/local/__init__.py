"""The local orders, unaligned, aligned and delay-free, and the wired nodes that they move."""
