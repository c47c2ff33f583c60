"""A benchmark of a training step in PyTorch."""


class Step:
    """A step of a small network with `onedsl.torch.enable`."""

    def setup(self):
        try:
            import torch
        except ImportError:
            raise NotImplementedError from None  # asv skips the benchmark
        import onedsl.torch

        onedsl.torch.enable()
        layers, channels = [], 3
        for _ in range(4):
            conv = torch.nn.Conv2d(channels, 32, 3, padding=1, bias=False)
            layers += [conv, torch.nn.BatchNorm2d(32), torch.nn.ReLU()]
            channels = 32
        self.model = torch.nn.Sequential(*layers).to(memory_format=torch.channels_last)
        images = torch.randn(8, 3, 64, 64, generator=torch.Generator().manual_seed(0))
        self.images = images.to(memory_format=torch.channels_last)

    def time_step(self):
        self.model.zero_grad()
        self.model(self.images).mean().backward()

    def peakmem_step(self):
        self.time_step()

    def teardown(self):
        import onedsl.torch

        onedsl.torch.disable()
