"""VGG16 for images of 32 x 32: thirteen convolutions with batch normalisation and a single linear layer."""

import torch
from torch import Tensor, nn
from torchvision.models.vgg import cfgs, make_layers


class VGG16(nn.Module):
    """Configuration D of the paper with batch normalisation, its three linear layers replaced by one, 512 -> classes.

    14,728,266 parameters with 10 classes. Images of three channels, from 32 x 32; of larger ones the mean is taken over
    what five halvings leave.

    Source: Simonyan and Zisserman (arXiv 1409.1556), table 1, D; the single linear layer as in the common variants for
    CIFAR-10. Drawn as in He et al. 2015 (arXiv 1502.01852), normal with variance 2 / fan-in.
    """

    def __init__(self, classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        if in_channels != 3:
            raise ValueError(
                f"VGG16 takes images of 3 channels, got {in_channels}: use dataset=cifar10, or model=resnet20"
            )
        self.features = make_layers(cfgs["D"], batch_norm=True)
        self.linear = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:  # (B, 3, H, W) -> (B, classes)
        return self.linear(torch.mean(self.features(images), dim=(2, 3)))
