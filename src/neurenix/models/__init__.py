"""Models to plan with, and to train: by name, or by a configuration of your own.

Owns the public names. ``get`` returns a configuration, ``build`` a model, ``abstract`` a model
that takes no memory and can be preflighted at any size.
"""

from neurenix.models.base import Model as Model
from neurenix.models.configs import abstract as abstract
from neurenix.models.configs import build as build
from neurenix.models.configs import get as get
from neurenix.models.configs import names as names
from neurenix.models.decoder import Decoder as Decoder
from neurenix.models.decoder import DecoderConfig as DecoderConfig
from neurenix.models.encoder import Encoder as Encoder
from neurenix.models.encoder import EncoderConfig as EncoderConfig
from neurenix.models.losses import TokenLosses as TokenLosses
from neurenix.models.remat import Remat as Remat
from neurenix.models.resnet import ResNet as ResNet
from neurenix.models.resnet import ResNetConfig as ResNetConfig
from neurenix.models.rope import LinearScaling as LinearScaling
from neurenix.models.rope import RopeScaling as RopeScaling
from neurenix.models.rope import YarnScaling as YarnScaling
from neurenix.models.stack import FullAttention as FullAttention
from neurenix.models.stack import Latent as Latent
from neurenix.models.stack import StackConfig as StackConfig
from neurenix.models.vision import VisionConfig as VisionConfig
from neurenix.models.vision import VisionTransformer as VisionTransformer
