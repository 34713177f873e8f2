"""Inference servers: processes with accelerators that evaluate positions for many actors."""

from podzero.inference.serving.client import ServedParams as ServedParams
from podzero.inference.serving.client import ServerClient as ServerClient
from podzero.inference.serving.client import served_evaluation as served_evaluation
from podzero.inference.serving.messages import Encoding as Encoding
from podzero.inference.serving.messages import Hello as Hello
from podzero.inference.serving.messages import encoding_of as encoding_of
from podzero.inference.serving.messages import identity_of as identity_of
from podzero.inference.serving.server import InferenceServer as InferenceServer
