"""The usual combinations by name, for a script that wants no more than to send less."""

from sidco.compressors.sidco import Sidco
from sidco.compressors.topk import TopK
from sidco.feedback import ErrorFeedback
from sidco.fits import Exponential
from sidco.method import Gathered, Method


def sidco_e(ratio: float) -> Method:
    """SIDCo with exponential fits, stages by rule "trend", and error feedback."""
    return Gathered(ErrorFeedback(Sidco(ratio, Exponential(), Exponential())))


def topk(ratio: float) -> Method:
    """Exact Top-k with error feedback."""
    return Gathered(ErrorFeedback(TopK(ratio)))
