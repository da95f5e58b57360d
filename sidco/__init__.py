"""Gradient compression as DDP hooks, in two lines:

from sidco import attach, sidco_e
attach(model, sidco_e(ratio=0.001))  # model: a DistributedDataParallel
"""

from sidco.hook import Attachment, attach
from sidco.presets import sidco_e, topk

__all__ = ["Attachment", "attach", "sidco_e", "topk"]
