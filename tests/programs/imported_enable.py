"""Calls enable when it is imported, as the modules of some programs do."""

import onedsl.torch

onedsl.torch.enable()
