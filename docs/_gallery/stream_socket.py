"""How many lines went by between two samples, and the loss, along a feed that is too fast."""

import stream_socket
from matplotlib import pyplot as plt

rows = stream_socket.main()
figure, (above, below) = plt.subplots(2, sharex=True, figsize=(6.4, 4))
time = [row["t"] / stream_socket.RATE for row in rows]
above.plot(time, [row["tau"] for row in rows])
above.set(ylabel="lines per sample")
below.semilogy(time, [row["loss"] for row in rows], color="C1")
below.set(ylabel="loss", xlabel="seconds")
figure.align_ylabels()
figure.savefig("stream_socket.svg")
