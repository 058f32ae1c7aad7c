"""The table of the paper's parts, and the one part that no other test holds."""

import copy
import re
from pathlib import Path

import torch
from torch import nn

import hamlearn as hl

ROOT = Path(__file__).parents[2]


def test_every_part_of_the_paper_names_tests_that_exist():
    text = (ROOT / "docs/notation.md").read_text()
    section = text[text.index("## Where each part") : text.index("## Meaning of each")]
    rows = [line for line in section.splitlines() if line.startswith("| ") and "---" not in line][1:]
    found = [re.fullmatch(r".*`(tests/\S+)` \|", row) for row in rows]
    assert len(found) >= 18
    assert all(match is not None and (ROOT / match[1]).is_file() for match in found)


class Unfolded(nn.Module):
    """A cell and a readout, over all tokens of a sequence at once."""

    def __init__(self, cell, readout):
        super().__init__()
        self.cell, self.readout = cell, readout

    def forward(self, u):
        h, y = torch.zeros(u.shape[1], self.cell.hidden_size).to(u), []
        for token in u:
            h = self.cell(token, h)
            y.append(self.readout(h))
        return torch.stack(y)


def test_a_net_that_is_unfolded_learns_from_whole_sequences_as_an_echo_does():
    torch.manual_seed(0)
    cell, readout = nn.GRUCell(2, 4).double(), nn.Linear(4, 1).double()
    u, target = torch.randn(5, 6, 1, 2).double(), torch.randn(5, 6, 1, 1).double()
    hyper = hl.Hyper.from_sgd(lr=0.1, momentum=0.5)
    whole = hl.Network.feedforward(Unfolded(copy.deepcopy(cell), copy.deepcopy(readout)))
    unfolded = hl.Learner(whole, lambda y, wanted: (y - wanted).square().sum(), hyper)
    echoing = hl.Learner(
        hl.Network.recurrent(cell, readout), lambda y, wanted: (y - wanted).square().sum(), hyper, credit=hl.Echo()
    )
    for tokens, wanted in zip(u, target, strict=True):
        unfolded.step(hl.Sample(tokens, wanted))
        for k in range(6):
            echoing.step(hl.Sample(tokens[k], wanted[k], boundary=k == 5))
    for a, b in zip(whole.parameters(), echoing.network.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
